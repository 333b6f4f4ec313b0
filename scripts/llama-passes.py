"""Times llama.cpp's passes for `hunch bench passes`: MODEL THREADS. Speaks the line protocol of
src/bench/passes.rs on standard input and output. Needs the package llama-cpp-python."""

import sys
import time

import llama_cpp as ll

CONTEXT = 128


def main() -> None:
    path, threads = sys.argv[1], int(sys.argv[2])
    ll.llama_backend_init()
    model = ll.llama_model_load_from_file(path.encode(), ll.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    params = ll.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 1024, 512, 512
    params.n_threads = params.n_threads_batch = threads
    context = ll.llama_init_from_model(model, params)
    memory = ll.llama_get_memory(context)
    vocabulary = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    batch = ll.llama_batch_init(512, 0, 1)

    def decode(first: int, rows: int, logits: bool) -> float:
        batch.n_tokens = rows
        for i in range(rows):
            batch.token[i] = ((first + i) * 7 + 100) % vocabulary
            batch.pos[i] = first + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = logits
        begun = time.perf_counter()
        if ll.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        ll.llama_synchronize(context)
        return time.perf_counter() - begun

    def clear(keep: int) -> None:
        ll.llama_memory_seq_rm(memory, 0, keep, -1)

    held = 0
    print("ready", flush=True)
    for line in sys.stdin:
        what, count = line.split()
        if what == "prefill":
            clear(0)
            seconds = decode(0, int(count), False)
            clear(0)
            held = 0
        else:
            if held != CONTEXT:
                clear(0)
                decode(0, CONTEXT, False)
                held = CONTEXT
            seconds = decode(CONTEXT, int(count), True)
            clear(CONTEXT)
        print(f"{seconds:.9f}", flush=True)


main()
