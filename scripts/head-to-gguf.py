"""Converts the weights of a trained head to the file that Hunch loads: WEIGHTS.safetensors TARGET.gguf OUT.gguf.

The head is the network of crates/hunch-model/src/heads/mlp.rs. Matrices become Q8_0, vectors stay f32. Needs the Python
packages gguf, numpy and safetensors. docs/methods.md says how the shipped head was trained."""

import hashlib
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

MATRICES = ["fc.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"]
VECTORS = ["fc.bias", "ffn_norm.weight", "out_scale", "out_shift"]
LAYERS = [2, 14, 26]
TRAINING_TOKENS = 138_487


def main() -> None:
    weights, target, out = load_file(sys.argv[1]), gguf.GGUFReader(sys.argv[2]), sys.argv[3]
    norm = next(tensor for tensor in target.tensors if tensor.name == "output_norm.weight")
    name = target.fields["general.name"].contents()
    writer = gguf.GGUFWriter(out, "hunch-head")
    writer.add_name(f"Head for {name}")
    writer.add_license("apache-2.0")
    writer.add_string("hunch-head.kind", "mlp")
    writer.add_array("hunch-head.layers", LAYERS)
    writer.add_array("hunch-head.vocabulary", [int(token) for token in weights["shortlist"]])
    writer.add_uint32("hunch-head.embedding_length", weights["fc.weight"].shape[0])
    writer.add_uint32("hunch-head.feed_forward_length", weights["ffn_up.weight"].shape[0])
    writer.add_uint32("hunch-head.training_tokens", TRAINING_TOKENS)
    writer.add_string("hunch-head.target.name", name)
    writer.add_string("hunch-head.target.norm", hashlib.sha256(norm.data.astype("<f4").tobytes()).hexdigest())
    for tensor in MATRICES:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor, gguf.quantize(weights[tensor].astype(np.float32), kind), raw_dtype=kind)
    for tensor in VECTORS:
        writer.add_tensor(tensor, weights[tensor].astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
