#!/usr/bin/python3
"""Writes the seeds of directory_log_fuzz: records of every kind, some that must be refused, cuts and changed bytes.

The first byte is the fuzz target's mode. The target frames records itself, so no checksum is computed here.
"""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
GEOMETRY = json.dumps({
    "d_qk": 96, "d_rope": 32, "d_v": 64, "dtype": "bf16", "layers": 3, "model": "test/tiny", "revision": "r1",
    "rope_style": "interleaved", "rope_theta": 10000.0, "softmax_scale": 0.125}).encode()
PARENT_BEFORE, NO_PARENT, POSITION_NEXT, POSITION_ZERO, HOLDERS_BEFORE = 1, 2, 4, 8, 16


def text(value, width="B"):
    return struct.pack("<" + width, len(value)) + value


def record(kind, body, version=1):
    return struct.pack("<BBHI", kind, version, 0, len(body)) + body


def chunk(flags, seed, parent=b"", position=b"", holders=b""):
    return bytes([flags]) + bytes([seed]) * 32 + parent + struct.pack("<I", 256) + position + holders


def publish(chunks, count=None, names=(b"h1", b"h2"), version=7, name=b"gpl", tenant=b"", geometry=GEOMETRY):
    body = struct.pack("<Q", version) + text(tenant) + text(name) + text(geometry, "H")
    body += struct.pack("<I", len(names)) + b"".join(text(n) for n in names)
    body += struct.pack("<I", len(chunks) if count is None else count) + b"".join(chunks)
    prints = b"".join(b"\x01" + struct.pack("<QQ", i, 7) if i % 2 else b"\xff" for i in range(len(chunks)))
    return record(1, body + prints)


ON_BOTH = struct.pack("<BII", 2, 0, 1)
CHAIN = [chunk(NO_PARENT | POSITION_ZERO, 1, holders=ON_BOTH)] + [
    chunk(PARENT_BEFORE | POSITION_NEXT | HOLDERS_BEFORE, seed) for seed in range(2, 12)]
APART = [chunk(0, 1, parent=b"\x09" * 32, position=struct.pack("<Q", 5), holders=struct.pack("<BI", 1, 1)),
         chunk(NO_PARENT | POSITION_ZERO, 2, holders=ON_BOTH)]
RECORDS = {
    "chain": publish(CHAIN),
    "apart": publish(APART, tenant=b"acme"),
    "no_chunks": publish([]),
    "drop": record(2, struct.pack("<QQ", 8, 7) + text(b"acme") + text(b"gpl")),
    "epochs": record(3, struct.pack("<Q", 1_700_000_000_000)),
    "gap": record(8, struct.pack("<QQ", 7, 1_700_000_000_000)),
    "forget": record(9, struct.pack("<QQQQ", 9, 5, 7, 6) + text(b"acme") + text(b"gpl")),
    "founded": record(4, struct.pack("<Q", 0x0123456789ABCDEF)),
    "continues": record(5, struct.pack("<QQ", 3, 4711)),
    "snapshot": record(6, struct.pack("<QQQI", 5, 6, 7, 1)) + publish(CHAIN) + record(7, struct.pack("<I", 1)),
    "later_version": record(3, struct.pack("<Q", 1), version=2),
    "later_kind": record(11, b""),
    "too_many_chunks": publish(CHAIN, count=0xFFFFFFFF),
    "no_such_holder": publish([chunk(NO_PARENT | POSITION_ZERO, 1, holders=struct.pack("<BI", 1, 2))]),
    "no_holder": publish([chunk(NO_PARENT | POSITION_ZERO | HOLDERS_BEFORE, 1)]),
    "twice": publish([CHAIN[0], chunk(NO_PARENT | POSITION_ZERO | HOLDERS_BEFORE, 1)]),
    "not_json": publish(CHAIN, geometry=b"{"),
    "bad_name": publish(CHAIN, name=b"a b"),
    "long_body": record(3, struct.pack("<QQ", 1, 2)),
}
FILES = {
    "short_header": b"FRAM\x10\0\0\0",
    "zeros": bytes(2000),
    "bad_header": b"FRAM" + b"\x01" * 60,
}


def main():
    folder = HERE / "corpus" / "directory_log"
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in RECORDS.items():
        (folder / name).write_bytes(b"\x01" + records)
    for name, rest in FILES.items():
        (folder / name).write_bytes(b"\0" + rest)
    records = RECORDS["apart"] + RECORDS["epochs"]
    for name, cut, place, change in (("whole", 0xFFFF, 0, 0), ("cut", 600, 0, 0), ("flipped", 0xFFFF, 300, 1),
                                     ("cut_and_flipped", 900, 40, 0x80)):
        (folder / name).write_bytes(b"\x02" + struct.pack("<HHB", cut, place, change) + records)


if __name__ == "__main__":
    main()
