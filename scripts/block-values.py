#!/usr/bin/env python3
"""Records what blocks of weights stand for, for crates/hunch-kernels/tests/block_values.rs to compare with.

    python3 -m venv V && V/bin/pip install gguf==0.19.0 numpy && V/bin/python scripts/block-values.py

The reference is the Python package of llama.cpp, `gguf`. For each type the file holds one block with its values,
and a hash of the values of many blocks. A small generator makes their bytes. The tests need no Python.
"""
import json
import pathlib
import struct

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

TYPES = (
    "IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4"
).split()
# Enough for every point of every grid.
WEIGHTS = 512 * 256
MASK = (1 << 64) - 1


def noise(seed):
    """Yields bytes of Knuth's linear congruential generator."""
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        yield state >> 56


def half(random):
    """Returns the bytes of a small half-precision number of either sign. Some are subnormal."""
    return bytes([next(random), (next(random) & 0x83) | (next(random) % 7 << 2)])


def block(name, size, random):
    """Returns one block of random bytes, with scales that are numbers."""
    data = bytearray(next(random) for _ in range(size))
    if name == "NVFP4":
        for i in range(4):
            data[i] &= 0x7F
    elif name == "IQ1_M":
        low, high = half(random)
        for i, nibble in enumerate((low & 15, low >> 4, high & 15, high >> 4)):
            data[49 + 2 * i] = data[49 + 2 * i] & 15 | nibble << 4
    elif name != "MXFP4":
        at = size - 2 if name.startswith("TQ") else 0
        data[at : at + 2] = half(random)
    return bytes(data)


def fold(values):
    """Returns the FNV-1a hash over the bits of floats, 32 bits at a time. Minus zero counts as zero."""
    state = 0xCBF29CE484222325
    for bits in (values + numpy.float32(0)).view(numpy.uint32).tolist():
        state = ((state ^ bits) * 0x100000001B3) & MASK
    return state


types = []
for name in TYPES:
    kind = GGMLQuantizationType[name]
    weights, size = GGML_QUANT_SIZES[kind]
    random = noise(kind.value)
    blocks = b"".join(block(name, size, random) for _ in range(WEIGHTS // weights))
    values = dequantize(numpy.frombuffer(blocks, numpy.uint8).reshape(-1, size), kind).astype(numpy.float32).ravel()
    first = values[:weights]
    types.append(
        {
            "type": name,
            "number": kind.value,
            "block": blocks[:size].hex(),
            "values": struct.pack(f"<{weights}f", *first).hex(),
            "many": {"blocks": WEIGHTS // weights, "hash": f"{fold(values):016x}"},
        }
    )
out = pathlib.Path(__file__).parent.parent / "tests/golden/block-values.json"
made_by = "the Python package gguf 0.19.0, by scripts/block-values.py"
lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in types)
out.write_text('{"made_by":' + json.dumps(made_by) + ',"types":[\n' + lines + "\n]}\n")
