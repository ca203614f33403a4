#!/usr/bin/python3
"""Writes seed files of attention_fuzz, named after the target, precision and kind of rows that each reaches."""

import hashlib
import pathlib

ROOT = pathlib.Path(__file__).parent / "corpus" / "attention"

TARGETS = {"amx": 0, "dot": 1, "model": 2, "vector": 4}
PRECISIONS = {"exact": 1, "wire": 2, "fast": 3}
BF16, ODD, WILD = 32, 64, 128
FP8, SELECTED, LIMITED, POISONED, LARGE = 1, 2, 4, 16, 8 | 32
# Bits of the first byte besides target and precision, and bits of the second.
KINDS = {
    "dense": (0, 0),
    "limited_poisoned": (0, LIMITED | POISONED),
    "selected_bf16": (BF16, SELECTED | LIMITED),
    "fp8_odd": (ODD, FP8 | LIMITED),
    "fp8_wild_poisoned": (ODD | WILD, FP8 | SELECTED | POISONED),
    "large": (0, LARGE | LIMITED),
    "large_fp8_odd": (ODD, LARGE | FP8 | LIMITED),
}


def rest(name, length):
    """Bytes that look random and are the same each time."""
    data = b""
    while len(data) < length:
        data += hashlib.sha256(f"{name} {len(data)}".encode()).digest()
    return data[:length]


def main():
    for target, how in TARGETS.items():
        for precision, number in PRECISIONS.items():
            for kind, (more, what) in KINDS.items():
                if what & LARGE and precision != "exact":
                    continue  # they take longest, and differ from small ones only by their spans
                name = f"{target}_{precision}_{kind}"
                seed = bytes([how | number << 3 | more, what]) + rest(name, 211)
                (ROOT / name).write_bytes(seed)


if __name__ == "__main__":
    main()
