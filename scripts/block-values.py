#!/usr/bin/env python3
"""Records what blocks of weights stand for, for crates/hunch-kernels/tests/block_values.rs to compare with.

    python3 -m venv V && V/bin/pip install gguf==0.19.0 numpy && V/bin/python scripts/block-values.py

The reference is the Python package of llama.cpp, `gguf`. Version 0.19.0 cannot read Q1_0 and Q2_0. Their reference is
written below from the layouts of ggml-common.h and ggml-quants.c, as of llama-cpp-python 0.3.36. For each type the file holds one block with its values,
and a hash of the values of many blocks. A small generator makes their bytes. The tests need no Python.
"""
import json
import pathlib
import struct

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

TYPES = (
    "IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0"
).split()
# Types that the package cannot read: number, weights of a block, and bits of a code. A half-precision scale is
# followed by the codes, the first in the lowest bits.
OWN = {"Q1_0": (41, 128, 1), "Q2_0": (42, 64, 2)}
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


def own_values(name, blocks):
    """Returns the weights of rows of bytes, one block a row, of a type of OWN."""
    bits = OWN[name][2]
    scales = blocks[:, :2].copy().view("<f2").astype(numpy.float32)
    codes = blocks[:, 2:, None] >> numpy.arange(0, 8, bits, dtype=numpy.uint8) & (1 << bits) - 1
    codes = codes.reshape(len(blocks), -1).astype(numpy.float32)
    # One bit is -1 or 1. Two bits are -1, 0, 1 or 2.
    return scales * (2 * codes - 1 if bits == 1 else codes - 1)


types = []
for name in TYPES:
    if name in OWN:
        number, weights, bits = OWN[name]
        size = 2 + weights * bits // 8
    else:
        kind = GGMLQuantizationType[name]
        number, (weights, size) = kind.value, GGML_QUANT_SIZES[kind]
    random = noise(number)
    blocks = b"".join(block(name, size, random) for _ in range(WEIGHTS // weights))
    rows = numpy.frombuffer(blocks, numpy.uint8).reshape(-1, size)
    values = own_values(name, rows) if name in OWN else dequantize(rows, kind)
    values = values.astype(numpy.float32).ravel()
    first = values[:weights]
    types.append(
        {
            "type": name,
            "number": number,
            "block": blocks[:size].hex(),
            "values": struct.pack(f"<{weights}f", *first).hex(),
            "many": {"blocks": WEIGHTS // weights, "hash": f"{fold(values):016x}"},
        }
    )
out = pathlib.Path(__file__).parent.parent / "tests/golden/block-values.json"
made_by = "the Python package gguf 0.19.0 and, for Q1_0 and Q2_0, scripts/block-values.py, which recorded all"
lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in types)
out.write_text('{"made_by":' + json.dumps(made_by) + ',"types":[\n' + lines + "\n]}\n")
