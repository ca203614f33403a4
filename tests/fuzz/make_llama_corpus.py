#!/usr/bin/python3
"""Writes the seed files of llama_state_fuzz, each named for what it is."""

import pathlib
import struct

ROOT = pathlib.Path(__file__).parent / "corpus" / "llama_state"
FILE, DATA, SESSION = 0x67677371, 0xaf143cd8, 0x6767736e
F16, Q8_0, BF16 = 1, 8, 30


def words(*values):
    return b"".join(struct.pack("<i" if value < 0 else "<I", value) for value in values)


def head(ids, version=3, count=None):
    return words(FILE, version, len(ids) if count is None else count, *ids)


def cells(positions, sequences=1):
    return words(len(positions)) + b"".join(words(p, sequences, 0) for p in positions)


def layers(count, tokens, key=BF16, row=8, transposed=0, said=None):
    layer = words(key) + struct.pack("<Q", row) + bytes(row * tokens)
    return words(transposed, count if said is None else said) + layer * count


def state(ids=(1, 2, 3), positions=(0, 1, 2), streams=1, tail=b"", **rest):
    return head(ids) + words(streams) + cells(positions) + layers(2, len(positions), **rest) + tail


VALID = state()
SEEDS = {
    "valid": VALID,
    "valid_f16": state(key=F16, transposed=1),
    "valid_streams": state(streams=3, tail=words(0, 0)),
    "valid_second_stream": head((1,)) + words(2, 0) + cells((7,)) + layers(1, 1),
    "valid_data": words(DATA, 5, 1) + cells((4, 5)) + layers(1, 2),
    "valid_packed": head((-1, 1, 2, 8, 9, 0)) + words(1) + cells((0, 1)) + layers(1, 2),
    "valid_last_position": head((1,)) + words(1) + cells((2**31 - 1,)) + layers(1, 1),
    "packed_image": head((-1, 1, 2, 8, -1, 1)) + words(1) + cells((0, 1)) + layers(1, 2),
    "packed_short": head((-1, 1)) + words(1) + cells((0, 1)) + layers(1, 2),
    "packed_count": head((-1, 1, 2**32 - 1, 8, 9, 0)) + words(1) + cells((0, 1)) + layers(1, 2),
    "session": words(SESSION, 9, 0),
    "version_4": head((1,), version=4) + words(1) + cells((0,)) + layers(1, 1),
    "huge_ids": head((1, 2), count=2**32 - 1),
    "huge_cells": head((1,)) + words(1, 2**32 - 1) + bytes(64),
    "huge_row": state(row=8)[:-60] + struct.pack("<iQ", BF16, 2**63) + bytes(40),
    "huge_layers": head((1,)) + words(1) + cells((0,)) + layers(1, 1, said=2**32 - 1),
    "huge_streams": head((1,)) + words(2**32 - 1) + cells((0,)) + layers(1, 1),
    "no_streams": head((1,)) + words(0),
    "no_cells": head((1,)) + words(4, 0, 0, 0, 0),
    "two_streams": head((1,)) + words(2) + (cells((0,)) + layers(1, 1)) * 2,
    "gap": state(positions=(0, 1, 3)),
    "order": state(positions=(1, 0, 2)),
    "negative": state(positions=(-1, 0, 1)),
    "wraps": state(positions=(2**31 - 2, 2**31 - 1, -2**31)),
    "many_sequences": head((1,)) + words(1) + cells((0,), sequences=2) + layers(1, 1),
    "quantised": state(key=Q8_0),
    "values": state(tail=layers(2, 3)[8:]),
    "cut_ids": VALID[:17],
    "cut_cells": VALID[:50],
    "cut_rows": VALID[:-1],
    "left_over": VALID + b"x",
    "empty": b"",
}

if __name__ == "__main__":
    ROOT.mkdir(parents=True, exist_ok=True)
    for name, content in SEEDS.items():
        (ROOT / name).write_bytes(content)
    print(f"{len(SEEDS)} files in {ROOT}")
