"""Records what a head should compute: HEAD.gguf TARGET.gguf prints the expected logits of tests/it/heads.rs as JSON.

The arithmetic is that of crates/hunch-model/src/heads/mlp.rs, written a second time in double precision. Inputs are made
of sines. Needs the Python packages gguf and numpy."""

import json
import sys

import gguf
import numpy as np

# Last token of each case.
TOKENS = [28, 6330, 253]
# Logits recorded of each case.
TOP = 16
EPS = 1e-5


def tensor(reader: gguf.GGUFReader, name: str) -> np.ndarray:
    found = next(tensor for tensor in reader.tensors if tensor.name == name)
    return gguf.dequantize(found.data, found.tensor_type).astype(np.float64)


def rms_norm(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x) + eps)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def states(case: int, count: int, width: int) -> np.ndarray:
    i, j = np.arange(count)[:, None], np.arange(width)[None, :]
    return 10.0 * (i + 1) * np.sin((case + 1) * 0.37 * (i + 1) * (j + 1)) + np.cos(j * 0.11)


def described(logits: np.ndarray, vocabulary: np.ndarray) -> dict:
    top = np.argsort(-logits)[:TOP]
    return {
        "deviation": float(np.std(logits)),
        "top": [[int(vocabulary[i]), round(float(logits[i]), 4)] for i in top],
    }


def main() -> None:
    head, target = gguf.GGUFReader(sys.argv[1]), gguf.GGUFReader(sys.argv[2])
    architecture = target.fields["general.architecture"].contents()
    epsilon = target.fields[f"{architecture}.attention.layer_norm_rms_epsilon"].contents()
    names = {tensor.name for tensor in target.tensors}
    embedding = tensor(target, "token_embd.weight")
    output = tensor(target, "output.weight") if "output.weight" in names else embedding
    vocabulary = np.array(head.fields["hunch-head.vocabulary"].contents())
    layers = head.fields["hunch-head.layers"].contents()
    w = {tensor_.name: tensor(head, tensor_.name) for tensor_ in head.tensors}
    depth = head.fields["hunch-head.depth"].contents() if "hunch-head.depth" in head.fields else 1

    def logits(x: np.ndarray) -> np.ndarray:
        return output[vocabulary] @ (x * w["out_scale"] + w["out_shift"])

    def block(x: np.ndarray, prefix: str) -> np.ndarray:
        y = rms_norm(x, EPS) * w[f"{prefix}ffn_norm.weight"]
        gated = silu(w[f"{prefix}ffn_gate.weight"] @ y) * (w[f"{prefix}ffn_up.weight"] @ y)
        return x + w[f"{prefix}ffn_down.weight"] @ gated

    cases = []
    for case, token in enumerate(TOKENS):
        *tapped, last = states(case, len(layers) + 1, embedding.shape[1])
        parts = [rms_norm(last, epsilon) * tensor(target, "output_norm.weight")]
        parts += [rms_norm(state, EPS) for state in tapped]
        x = block(w["fc.weight"] @ np.concatenate([*parts, rms_norm(embedding[token], EPS)]) + w["fc.bias"], "")
        steps = [{"token": token, **described(logits(x), vocabulary)}]
        for _ in range(1, depth):
            # The next token is the likeliest one.
            token = steps[-1]["top"][0][0]
            context = w["context.weight"] @ np.concatenate(parts) + w["context.bias"]
            pair = np.concatenate([rms_norm(x, EPS), rms_norm(embedding[token], EPS)])
            x = block(context + w["next.fc.weight"] @ pair, "next.")
            steps.append({"token": token, **described(logits(x), vocabulary)})
        cases.append({"case": case, "steps": steps})
    print("[" + ",\n".join(json.dumps(case) for case in cases) + "]")


if __name__ == "__main__":
    main()
