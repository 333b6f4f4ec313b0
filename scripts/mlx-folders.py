#!/usr/bin/env python3
"""Records what MLX computes on folders of safetensors files, for crates/hunch-model/src/model_folder/tests.rs.

    python3 -m venv V && V/bin/pip install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2 tokenizers && V/bin/python scripts/mlx-folders.py

The references are mlx and mlx-lm of Apple, and the package tokenizers. The recording has the configuration, names and
shapes of each tiny model. A small generator makes the bytes of its tensors from their names, here and in the test.
"""
import importlib
import json
import pathlib

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

TARGET = pathlib.Path(__file__).parent.parent / "tests/golden/mlx-folders.json"
MASK = (1 << 64) - 1
TOKENS = [3, 77, 150, 12, 9, 200, 63, 118, 41, 255, 7, 90]
KEPT = 8


def noise(name):
    """Yields bytes of Knuth's linear congruential generator, seeded by the FNV hash of a name."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        yield state >> 56


def halves(bits, dtype):
    """Returns 16-bit numbers as float32."""
    bits = np.array(bits, dtype=np.uint16)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def scale_bits(random, count, code_bits, dtype):
    """Returns scales of 2^-(code_bits + 1) to twice as much."""
    exponent, mantissa = (15, 10) if dtype == "F16" else (127, 7)
    base = (exponent - code_bits - 1) << mantissa
    return [base + (next(random) << (mantissa - 8) if mantissa > 8 else next(random) >> 1) for _ in range(count)]


def floats(name, count, dtype):
    """Returns the bits of a float tensor: about 1 for norms, small numbers of either sign for the others."""
    random = noise(name)
    mantissa = 10 if dtype == "F16" else 7
    one = (15 if dtype == "F16" else 127) << mantissa
    if "norm" in name:
        return [one + (next(random) >> 2) for _ in range(count)]
    return [one - (3 << mantissa) + (next(random) >> 1) | (next(random) & 1) << 15 for _ in range(count)]


def record(name, config, modes, dtype="BF16", tied=None):
    """Runs a tiny model of a family and returns its recording."""
    base = {
        "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": bool(tied),
        "quantization": modes,
    }
    config = {**base, **config}
    module = importlib.import_module("mlx_lm.models." + config["model_type"])
    model = module.Model(module.ModelArgs.from_dict(config))

    def chosen(path, layer):
        if not hasattr(layer, "to_quantized"):
            return False
        return modes.get(path, {"group_size": modes["group_size"], "bits": modes["bits"]})

    nn.quantize(model, modes["group_size"], modes["bits"], class_predicate=chosen)
    tensors, arrays = [], []
    for path, array in tree_flatten(model.parameters()):
        shape = list(array.shape)
        count = int(np.prod(shape))
        module_path, _, part = path.rpartition(".")
        mode = modes.get(module_path, modes)
        quantised = part in ("scales", "biases")
        if array.dtype == mx.uint32:
            random = noise(path)
            words = np.frombuffer(bytes(next(random) for _ in range(4 * count)), dtype="<u4").reshape(shape)
            tensors.append([path, "U32", shape])
            arrays.append((path, mx.array(words)))
            continue
        if quantised:
            mantissa = 10 if dtype == "F16" else 7
            bits = scale_bits(noise(module_path + ".scales"), count, mode["bits"], dtype)
            if part == "biases":
                bits = [(one + ((mode["bits"] - 1) << mantissa)) | 0x8000 for one in bits]
        else:
            bits = floats(path, count, dtype)
        tensors.append([path, dtype, shape])
        arrays.append((path, mx.array(halves(bits, dtype).reshape(shape))))
    model.load_weights(arrays, strict=True)
    logits = np.array(model(mx.array([TOKENS]))[0].astype(mx.float32)).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) - logits.max(-1, keepdims=True)
    best = np.argsort(-logprobs, axis=-1)[:, :KEPT]
    top = [[[int(i), round(float(row[i]), 4)] for i in ids] for row, ids in zip(logprobs, best)]
    print(f"{name:24} entropy {-(np.exp(logprobs) * logprobs).sum(-1).mean():.2f}")
    return {"name": name, "config": config, "tensors": tensors, "top": top}


def values():
    """Returns quantised rows of each number of bits, with the values that mlx gives them."""
    out = []
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for dtype in (mx.float16, mx.bfloat16):
                mx.random.seed(bits * group)
                weights = (mx.random.normal((2, 128)) * 0.02).astype(dtype)
                codes, scales, biases = mx.quantize(weights, group_size=group, bits=bits)
                exact = mx.dequantize(codes, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits)
                raw = [np.array(a.view(mx.uint16)).view(np.uint8).tobytes().hex() for a in (scales, biases)]
                out.append({
                    "bits": bits, "group": group, "dtype": "F16" if dtype == mx.float16 else "BF16",
                    "codes": np.array(codes).tobytes().hex(), "scales": raw[0], "biases": raw[1],
                    "values": np.array(exact).astype("<f4").tobytes().hex(),
                })
    weights = mx.random.normal((2, 128)) * 0.02
    codes, scales = mx.quantize(weights, group_size=32, bits=4, mode="mxfp4")[:2]
    exact = mx.dequantize(codes, scales, group_size=32, bits=4, mode="mxfp4", dtype=mx.float32)
    out.append({
        "bits": 4, "group": 32, "dtype": "U8", "codes": np.array(codes).tobytes().hex(),
        "scales": np.array(scales).tobytes().hex(), "values": np.array(exact).astype("<f4").tobytes().hex(),
    })
    return out


def tokenizers():
    """Returns small tokenisers of both kinds, with the tokens that the package tokenizers gives texts."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    corpus = ["The lighthouse keeper counts 1234 ships, don't they?  Yes.\n\nDie Brücke über den Fluß.", "fn main() { println!(\"hi\"); }"] * 3
    texts = ["The lighthouse 12 keeps", "don't  stop\n\n<|im_end|>x", "Fluß 日本", " lead", "a<s>b<0x41>"]
    qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    level = Tokenizer(models.BPE())
    level.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(qwen), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    level.decoder = decoders.ByteLevel()
    level.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))
    spm = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    spm.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    spm.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]))
    data = json.loads(spm.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    data["post_processor"] = json.loads('{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}}')
    spm = Tokenizer.from_str(json.dumps(data))
    out = []
    for name, own, settings in [
        ("byte-level", level, {"eos_token": "<|im_end|>"}),
        ("sentencepiece", spm, {"bos_token": "<s>", "eos_token": "</s>"}),
    ]:
        ids = [[text, own.encode(text).ids] for text in texts]
        out.append({"name": name, "tokenizer": json.loads(own.to_str()), "settings": settings, "texts": ids})
    return out


def main():
    four = {"group_size": 64, "bits": 4}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    factors = [1.0 + i / 4 for i in range(16)]
    models = [
        record("qwen3", {"model_type": "qwen3"}, four, tied=True),
        record("qwen2 8 bits", {"model_type": "qwen2"}, {"group_size": 32, "bits": 8}, "F16"),
        record("llama 3.1", {"model_type": "llama", "rope_scaling": llama3}, four),
        record("llama 6 bits", {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}}, {"group_size": 128, "bits": 6}),
        record("mistral mixed", {"model_type": "llama"}, {
            **four, "model.embed_tokens": {"group_size": 32, "bits": 6}, "lm_head": {"group_size": 64, "bits": 8},
            "model.layers.0.mlp.down_proj": {"group_size": 64, "bits": 5}, "model.layers.1.mlp.down_proj": {"group_size": 32, "bits": 3},
            "model.layers.1.self_attn.v_proj": {"group_size": 64, "bits": 2},
        }),
        record("gemma2", {"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "sliding_window": 512,
                          "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, four, tied=True),
        record("gemma3", {"model_type": "gemma3_text", "sliding_window": 4, "sliding_window_pattern": 2, "rope_theta": 1e6,
                          "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 24, "hidden_activation": "gelu_pytorch_tanh"}, four),
        record("phi3 longrope", {"model_type": "phi3", "original_max_position_embeddings": 128,
                                 "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": factors}}, four),
        record("granite", {"model_type": "granite", "logits_scaling": 4.0, "attention_multiplier": 0.1, "embedding_multiplier": 6.0,
                           "residual_multiplier": 0.3, "attention_bias": False, "mlp_bias": False}, four, tied=True),
        record("olmo2", {"model_type": "olmo2"}, four),
        record("glm4", {"model_type": "glm4", "attention_bias": True, "partial_rotary_factor": 0.5}, four),
        record("seed_oss", {"model_type": "seed_oss", "attention_bias": True}, four),
        record("exaone4", {"model_type": "exaone4", "rope_scaling": {"rope_type": "default"}, "sliding_window": None, "sliding_window_pattern": None}, four),
        record("smollm3", {"model_type": "smollm3", "num_hidden_layers": 4}, four, tied=True),
        record("yarn", {"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}, four),
    ]
    recorded = {"tokens": TOKENS, "models": models, "values": values(), "tokenizers": tokenizers()}
    TARGET.write_text(json.dumps(recorded, separators=(",", ":"), ensure_ascii=False) + "\n")
    print(TARGET.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
