#!/usr/bin/python3
"""Writes the seed files of safetensors_fuzz into corpus/safetensors/, each named for what it is."""

import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).parent / "corpus" / "safetensors"


def raw(header, data=b""):
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header)) + header + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def rows(dtype, d_v, d_rope, row_bytes, width, tokens, layers, **metadata):
    header = {"__metadata__": {
        "model": "m", "revision": "r", "d_v": str(d_v), "d_rope": str(d_rope),
        "rope_style": "interleaved", "rope_theta": "10000", "softmax_scale": "0.5",
        "base_position": "7", **metadata}}
    size = tokens * row_bytes
    for i in range(layers):
        header[f"layers.{i}.ckv"] = tensor(dtype, [tokens, width], i * size, (i + 1) * size)
    end = layers * size
    header["token_ids"] = tensor("I32", [tokens], end, end + 4 * tokens)
    data = bytes(i % 251 for i in range(end)) + b"".join(struct.pack("<i", i) for i in range(tokens))
    return raw(json.dumps(header), data)


YARN = json.dumps({"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                   "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707})
U8 = '"dtype":"U8"'
VALID = raw(json.dumps({"__metadata__": {"k": "v"}, "a": tensor("U8", [2], 0, 2),
                        "b": tensor("F32", [], 2, 6), "c": tensor("BF16", [0, 576], 6, 6)}),
            b"abcdef")

FILES = {
    "valid": VALID,
    "valid_empty": raw("{}"),
    "valid_padded": raw("{}      "),
    "valid_rows_bf16": rows("BF16", 8, 2, 20, 10, 3, 2),
    "valid_rows_yarn_half": rows("BF16", 8, 2, 20, 10, 1, 1, rope_style="half", rope_scaling=YARN),
    "valid_rows_fp8": rows("U8", 128, 2, 136, 136, 2, 1),
    "valid_rows_none": rows("BF16", 8, 2, 20, 10, 0, 2),
    "rows_wrong_width": rows("BF16", 8, 2, 20, 5, 3, 2),
    "rows_far_position": rows("BF16", 8, 2, 20, 10, 1, 1, base_position=str(2**40)),
    "rows_huge_width": rows("BF16", 2**40, 2, 20, 10, 1, 1),
    "rope_scaling": YARN.encode(),
    "truncated_length": b"\x10\0\0",
    "truncated_header": VALID[:30],
    "truncated_data": VALID[:-1],
    "huge_header_length": b"\xff" * 8 + b"{}",
    "huge_offsets": raw("{\"t\":{" + U8 + f',"shape":[1],"data_offsets":[{2**64 - 1},{2**64 - 1}]}}}}'),
    "huge_shape": raw("{\"t\":{" + U8 + f',"shape":[{2**32},{2**32},0],"data_offsets":[0,0]}}}}'),
    "huge_number": raw('{"t":{"shape":[1e999]}}'),
    "overlap": raw("{\"a\":{" + U8 + ',"shape":[3],"data_offsets":[0,3]},"b":{' + U8
                   + ',"shape":[2],"data_offsets":[2,4]}}', b"abcd"),
    "gap": raw("{\"a\":{" + U8 + ',"shape":[1],"data_offsets":[0,1]},"b":{' + U8
               + ',"shape":[2],"data_offsets":[2,4]}}', b"abcd"),
    "left_over": raw("{\"a\":{" + U8 + ',"shape":[1],"data_offsets":[0,1]}}', b"abcd"),
    "backwards": raw("{\"t\":{" + U8 + ',"shape":[0],"data_offsets":[4,0]}}', b"abcd"),
    "deep_nesting": raw('{"t":' + "[" * 2000),
    "duplicate_names": raw("{\"t\":{" + U8 + ',"shape":[0],"data_offsets":[0,0]},"t":{' + U8
                           + ',"shape":[0],"data_offsets":[0,0]}}'),
    "duplicate_escaped": raw("{\"t\":{" + U8 + ',"shape":[0],"data_offsets":[0,0]},"\\u0074":{}}'),
    "duplicate_metadata": raw('{"__metadata__":{"a":"1","a":"2"}}'),
    "nul_in_header": raw(b"{}\0{"),
    "not_utf8": raw(b'{"\xff\xfe":{}}'),
    "surrogate": raw('{"\\ud800":{}}'),
}

if __name__ == "__main__":
    ROOT.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (ROOT / name).write_bytes(content)
    print(f"{len(FILES)} files in {ROOT}")
