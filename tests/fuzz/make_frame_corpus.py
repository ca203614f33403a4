#!/usr/bin/python3
"""Writes the seeds of frame_fuzz: one valid frame of each kind and a few that must be refused.

The first byte is the fuzz target's mode (2: repair the checksum of a request, 3: of a reply), so no
checksum is computed here. Widths are those of the target: 4 layers, d_qk 8, d_v 6.
"""

import pathlib
import re
import struct
import sys

HERE = pathlib.Path(__file__).parent
# Seeds of another version reach nothing behind the check of it.
VERSION = int(re.search(r"kWireVersion = (\d+);", (HERE / "../../transport/wire.h").read_text()).group(1))


def request(kind, body, flags=0, rows=0, layer=0, segments=0, pieces=0, indices=0, version=VERSION):
    header = struct.pack(
        "<IHBBQQQIIIHHII32x", 0x51564B43, version, kind, flags, 7, 1, 2, 1000, len(body), rows, layer, segments,
        pieces, indices)
    return b"\x02" + header + body


def reply(kind, body, flags=0, code=0, rows=0, partials=0, body_checksum=0, version=VERSION):
    return b"\x03" + struct.pack(
        "<IHBBQQIIIIIIIIII", 0x52564B43, version, kind, flags, 7, 1, code, len(body), rows, partials, 5, 6, 7,
        8, body_checksum, 0) + body


def segment(rows, pieces, partials, copies, index_rows=1, chosen=(0, 0, 0)):
    return struct.pack("<IIIHHIHHQ", rows, pieces, partials, copies, index_rows, 0xFFFFFFFF, *chosen)


def piece(handle, ordinal, partial, copy, begin, k, group_rows):
    return struct.pack("<8I", handle, ordinal, partial, copy, begin, k, group_rows, 0)


def pad(body, head=0):
    return body + bytes(-(head + len(body)) % 64)


def attend(segments, pieces, rows, stored_rows, indices, flags=0):
    body = pad(b"".join(segments) + b"".join(pieces), head=88)
    body = pad(body + bytes(range(16)) * stored_rows, head=88) + bytes(4 * indices)
    return request(2, body, flags=flags, rows=rows, layer=3, segments=len(segments), pieces=len(pieces),
                   indices=indices)


def score(tokens, runs, candidates=7, k=100, scores=40, dtype=2):
    body = struct.pack("<QIIB11x", candidates, k, scores, dtype) + b"".join(struct.pack("<2I", *run) for run in runs)
    body = pad(pad(body, head=88) + bytes(range(16)) * tokens * (2 if dtype == 1 else 1), head=88)
    return request(5, body + struct.pack("<2f", 1, 2) * tokens, rows=tokens, layer=3, pieces=len(runs))


DENSE, CHOSEN = 0xFFFFFFFF, 0xFFFFFFFE
SEEDS = {
    "probe": request(1, b"echo"),
    "probe_empty": request(1, b""),
    "attend_dense": attend([segment(3, 1, 1, 1)], [piece(1, 0, 0, 0, DENSE, 0, 1)], 3, 3, 0),
    "attend_selected": attend(
        [segment(5, 2, 1, 2)], [piece(1, 0, 0, 0, 0, 2, 2), piece(2, 3, 0, 1, 6, 1, 1)], 5, 10, 11),
    "attend_segments": attend(
        [segment(3, 2, 2, 1), segment(2, 3, 1, 2)],
        [piece(1, 5, 0, 0, DENSE, 0, 1), piece(2, 6, 1, 0, DENSE, 0, 1), piece(1, 0, 0, 1, DENSE, 0, 1),
         piece(2, 1, 0, 0, DENSE, 0, 1), piece(3, 7, 0, 0, 0, 4, 2)], 5, 7, 4),
    "attend_approximate": attend([segment(3, 1, 1, 1)], [piece(1, 0, 0, 0, DENSE, 0, 1)], 3, 3, 0, flags=4),
    "attend_index_out_of_range": attend([segment(5, 1, 1, 1)], [piece(1, 0, 0, 0, 9, 2, 2)], 5, 5, 11),
    "attend_k_wraps": attend([segment(5, 1, 1, 1)], [piece(1, 0, 0, 0, 0, 0x55555556, 2)], 5, 5, 11),
    "attend_out_of_order": attend(
        [segment(3, 2, 1, 1)], [piece(1, 6, 0, 0, DENSE, 0, 1), piece(2, 5, 0, 0, DENSE, 0, 1)], 3, 3, 0),
    "attend_blocks": attend([segment(3, 1, 1, 1, index_rows=64)], [piece(1, 0, 0, 0, 0, 1, 3)], 3, 3, 1),
    "attend_chosen": attend(
        [segment(3, 2, 1, 1, chosen=(1, 40, 7))],
        [piece(1, 5, 0, 0, CHOSEN, 0, 1), piece(2, 6, 0, 0, CHOSEN, 0, 1)], 3, 3, 0),
    "attend_chosen_of_nothing": attend([segment(3, 1, 1, 1)], [piece(1, 5, 0, 0, CHOSEN, 0, 1)], 3, 3, 0),
    "score": score(3, [(1, 4), (9, 2)]),
    "score_bf16": score(2, [(1, 4)], dtype=1),
    "score_of_all_handles": score(1, [(1, 0xFFFFFFFF)]),
    "candidates": request(6, struct.pack("<Q4IQ", 7, 1, 3, 40, 2, 0)),
    "candidates_wrap": request(6, struct.pack("<Q4IQ", 7, 1, 0xFFFFFFF0, 40, 1, 0)),
    "reply_score": reply(5, bytes(120), rows=3, partials=2),
    "fetch_version_0": request(3, struct.pack("<8I", 1, 0, 4, 2, 100, 0, 0, 0), version=0),
    "fetch_version_2": request(3, struct.pack("<8I", 1, 0, 4, 2, 100, 0, 0, 0), version=2),
    "reply_version_2": reply(2, bytes(2 * (36 + 24)), rows=3, partials=2, version=2),
    "fetch": request(3, struct.pack("<8I", 1, 0, 4, 2, 100, 0, 0, 0)),
    "fetch_wraps": request(3, struct.pack("<8I", 1, 0, 4, 0xFFFFFFFF, 2, 0, 0, 0)),
    "map": request(4, struct.pack("<8I", 1, 0, 0, 0, 0, 0, 0, 0)),
    "reply_map": reply(4, struct.pack("<3Q2I", 4 * 128, 96, 128, 4, 0), rows=3, partials=2),
    "reply_map_beyond": reply(4, struct.pack("<3Q2I", 4 * 128 - 1, 96, 128, 4, 0), rows=3, partials=2),
    "reply_attend": reply(2, bytes(2 * (36 + 24)), rows=3, partials=2),
    "reply_attend_f32": reply(2, bytes(2 * (72 + 24)), flags=1, rows=3, partials=2),
    "reply_fetch": reply(3, bytes(40), rows=3, partials=2),
    "reply_error": reply(2, b"queue of 12\x1b[2J", code=8),
    "reply_probe": reply(1, b"echo", rows=3, partials=2),
    "request_short": request(1, b"")[:40],
    "request_unsigned": b"\x00" + request(1, b"")[1:],
    "reply_unsigned": b"\x01" + reply(1, b"")[1:],
}

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "corpus/frame")
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in SEEDS.items():
        (folder / name).write_bytes(seed)
