#!/usr/bin/python3
"""Writes the seed files of npy_fuzz and safetensors_index_fuzz, each named for what it is."""

import pathlib
import struct

ROOT = pathlib.Path(__file__).parent / "corpus"


def npy(header, data=b"", major=1, length=None):
    text = header.encode()
    size = len(text) if length is None else length
    return (b"\x93NUMPY" + bytes([major, 0]) + struct.pack("<H" if major == 1 else "<I", size)
            + text + data)


def header(descr, shape, fortran="False"):
    return f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}   \n"


VALID = npy(header("<f4", "(2, 3)"), bytes(24))
NPY = {
    "valid": VALID,
    "valid_2": npy(header("|V2", "(3,)"), bytes(6), major=2),
    "valid_3": npy(header("<u2", "()"), bytes(2), major=3),
    "valid_empty": npy(header("|u1", "(0, 4)")),
    "double_quotes": npy('{"shape": (1,), "descr": "<i4", "fortran_order": False}', bytes(4)),
    "fortran": npy(header("<f4", "(2, 3)", "True"), bytes(24)),
    "big_endian": npy(header(">f4", "(2, 3)"), bytes(24)),
    "object": npy(header("|O8", "(1,)"), bytes(8)),
    "record": npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", bytes(4)),
    "huge_shape": npy(header("<f4", f"({2**32}, {2**32}, 0)")),
    "huge_axis": npy(header("<f4", f"({2**64},)")),
    "huge_item": npy(header("<f4294967297", "(1,)"), bytes(4)),
    "many_axes": npy(header("<f4", "(" + "1," * 2000 + ")"), bytes(4)),
    "negative": npy(header("<f4", "(-1,)")),
    "twice": npy("{'descr': '<f4', 'descr': '<f4', 'shape': (1,)}", bytes(4)),
    "open_string": npy("{'descr': '<f4"),
    "version_9": npy(header("<f4", "(1,)"), bytes(4), major=9),
    "long_header": npy(header("<f4", "(1,)"), bytes(4), major=2, length=2**32 - 1),
    "cut_header": VALID[:40],
    "cut_data": VALID[:-1],
    "cut_magic": VALID[:7],
    "left_over": VALID + b"x",
}
INDEX = {
    "valid": b'{"metadata":{"total_size":9},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}',
    "no_metadata": b'{"weight_map":{"a":"x"}}',
    "parent": b'{"weight_map":{"a":"../x"}}',
    "dots": b'{"weight_map":{"a":".."}}',
    "absolute": b'{"weight_map":{"a":"/etc/passwd"}}',
    "nul": b'{"weight_map":{"a":"x\\u0000y"}}',
    "escaped_slash": b'{"weight_map":{"a":"x\\/y"}}',
    "twice": b'{"weight_map":{"a":"x","\\u0061":"y"}}',
    "number": b'{"weight_map":{"a":1}}',
    "empty_map": b'{"weight_map":{}}',
    "deep": b'{"weight_map":' + b"[" * 2000,
    "huge_total": b'{"metadata":{"total_size":1e999},"weight_map":{"a":"x"}}',
    "not_utf8": b'{"weight_map":{"\xff":"x"}}',
    "cut": b'{"weight_map":{"a"',
}

if __name__ == "__main__":
    for folder, files in (("npy", NPY), ("safetensors_index", INDEX)):
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (ROOT / folder / name).write_bytes(content)
        print(f"{len(files)} files in {ROOT / folder}")
