#!/usr/bin/env python3
"""Makes a draft model that is never right: a GGUF file with the rows of every layer's matrices in
reverse order. Same vocabulary, same cost, nonsense. For measuring what `--max-draft auto` costs where
drafting cannot pay:

    scripts/hostile-draft.py small.gguf hostile.gguf
    hunch bench --target model.gguf --draft hostile.gguf --methods draft-model,draft-tree
"""
import struct
import sys

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self):
        length = self.number("Q")
        self.at += length
        return bytes(self.data[self.at - length : self.at])

    def skip_value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            of, count = self.number("I"), self.number("Q")
            if of in SCALARS:
                self.at += SCALARS[of] * count
            else:
                for _ in range(count):
                    self.skip_value(of)
        else:
            self.at += SCALARS[kind]


def main(source, target):
    data = bytearray(open(source, "rb").read())
    reader = Reader(data)
    if reader.number("I") != 0x46554747:
        sys.exit(f"{source} is not a GGUF file")
    reader.number("I")
    tensors, entries = reader.number("Q"), reader.number("Q")
    alignment = 32
    for _ in range(entries):
        key, kind = reader.string(), reader.number("I")
        if key == b"general.alignment":
            alignment = struct.unpack_from("<I", data, reader.at)[0]
        reader.skip_value(kind)
    placed = []
    for _ in range(tensors):
        name = reader.string().decode()
        dims = [reader.number("Q") for _ in range(reader.number("I"))]
        reader.number("I")
        placed.append((reader.number("Q"), name, dims))
    start = -(-reader.at // alignment) * alignment
    placed.sort()
    ends = [offset for offset, _, _ in placed[1:]] + [len(data) - start]
    for (offset, name, dims), end in zip(placed, ends):
        if not name.startswith("blk.") or len(dims) != 2:
            continue
        rows = dims[1]
        # Padding between two tensors is less than a row, so the division gives the bytes of a row.
        row = (end - offset) // rows
        begin = start + offset
        matrix = bytes(data[begin : begin + rows * row])
        parts = [matrix[i * row : (i + 1) * row] for i in range(rows)]
        data[begin : begin + rows * row] = b"".join(reversed(parts))
    open(target, "wb").write(data)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
