#!/usr/bin/python3
"""Writes the seeds of extra_keys_fuzz: encodings and JSON of extra keys, right and wrong.

    python3 tests/fuzz/make_extra_keys_corpus.py tests/fuzz/corpus/extra_keys
"""

import json
import pathlib
import struct
import sys


def encoded(keys, count=None):
    return struct.pack("<I", len(keys) if count is None else count) + b"".join(
        struct.pack("<qIB", begin, tokens, len(digest)) + digest for begin, tokens, digest in keys)


PICTURE, BEFORE, ADAPTER = (4, 20, b"picture"), (-3, 9, bytes(32)), (0, 0, b"adapter")
SEEDS = {
    "none": b"",
    "one": encoded([PICTURE]),
    "three": encoded([BEFORE, ADAPTER, PICTURE]),
    "unsorted": encoded([PICTURE, BEFORE]),
    "twice": encoded([PICTURE, PICTURE]),
    "many_promised": encoded([PICTURE], count=1024),
    "too_many": encoded([], count=1025),
    "cut": encoded([PICTURE])[:-1],
    "behind": encoded([PICTURE]) + b"\0",
    "far": encoded([(-2**63, 2**32 - 1, b"x")]),
    "no_digest": encoded([(0, 1, b"")]),
    "long_digest": encoded([(0, 1, bytes(65))]),
    "json": json.dumps([{"begin": 4, "tokens": 20, "digest": "00ff"}, {"digest": "aa"}]).encode(),
    "json_before": json.dumps([{"begin": -4, "tokens": 5, "digest": "00" * 64}]).encode(),
    "json_odd": b'[{"digest":"0"}]',
}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in SEEDS.items():
        (folder / name).write_bytes(seed)


main()
