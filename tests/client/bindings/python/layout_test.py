#!/usr/bin/python3
"""Goal: the structs of the Python package are those of the C headers.

Method: reads each struct of client/bindings/c/ckv*.h, field by field, and compares names, order and types with
client/bindings/python/ckv/_structs.py. Numbers of enums and functions are compared by name, too.

    python3 tests/client/bindings/python/layout_test.py
"""

import ctypes
import pathlib
import re
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT / "client/bindings/python"), str(ROOT / "tests/support")]
import skip  # noqa: E402

skip.needs("numpy")
import ckv  # noqa: E402
from ckv import _library, _structs, errors  # noqa: E402

STRUCT = re.compile(r"typedef struct (ckv_\w+) \{(.*?)\} \1;", re.S)
FUNCTION = re.compile(r"^(?!static|typedef)[\w* ]+?\bckv_(\w+)\(([^;{]*)\);", re.M)
TYPES = {"size_t": ctypes.c_size_t, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
         "int64_t": ctypes.c_int64, "double": ctypes.c_double, "char*": ctypes.c_char_p}
ENUMS = {"CKV_DTYPE_": _structs.DTYPES, "CKV_ROPE_": _structs.ROPE_STYLES, "CKV_POLICY_": _structs.POLICIES,
         "CKV_PRECISION_": {k: v for k, v in _structs.PRECISIONS.items() if k}, "CKV_LSE_": _structs.LSE_FORMS,
         "CKV_MEMORY_": _structs.MEMORIES}


def fields_of(body):
    fields = []
    for line in body.split(";"):
        words = line.replace("const ", "").replace("*", "* ").split()
        if words:
            kind = "".join(word for word in words[:2] if word == words[0] or word == "*")
            names = " ".join(words[1:]).replace("* ", "").split(", ")
            fields += [(name, TYPES.get(kind, ctypes.c_void_p if kind.endswith("*") else kind)) for name in names]
    return fields


def main():
    version = re.search(r"project\(ckv VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    if ckv.__version__ != version:
        sys.exit(f"ckv.__version__ is {ckv.__version__}, the project's is {version}")
    text = "".join(path.read_text() for path in sorted((ROOT / "client/bindings/c").glob("ckv*.h")))
    text = re.sub(r"//[^\n]*", "", text)
    api = [int(re.search(rf"#define CKV_API_{part} (\d+)", text).group(1)) for part in ("MAJOR", "MINOR")]
    if api != [_structs.API_MAJOR, _structs.API_MINOR]:
        sys.exit(f"the version of the ABI is {_structs.API_MAJOR}.{_structs.API_MINOR}, {api} in the header")
    structs = {name: fields_of(body) for name, body in STRUCT.findall(text)}
    if structs.keys() != _structs.C_NAMES.keys():
        sys.exit(f"not in both: {sorted(structs.keys() ^ _structs.C_NAMES.keys())}")
    for name, want in structs.items():
        got = _structs.C_NAMES[name]._fields_
        if got != want:
            sys.exit(f"{name}:\n{got}\n{want} in the header")
    for prefix, table in ENUMS.items():
        want = {name.lower(): int(number) for name, number in re.findall(prefix + r"(\w+) = (\d+)", text)
                if name != "DEFAULT"}
        if table != want:
            sys.exit(f"{prefix}: {table}, {want} in the header")
    codes = re.findall(r"CKV_([A-Z_]+) = (\d+),", text)
    for name, number in codes[1:17]:  # after OK
        if errors.BY_CODE[int(number)].__name__.lower() != name.replace("_", "").lower():
            sys.exit(f"{name} is {errors.BY_CODE[int(number)]}")
    functions = {name: len(arguments.split(",")) for name, arguments in FUNCTION.findall(text)
                 if name != "status_name"}
    got = {name: len(arguments) for name, (_result, arguments) in _library.SIGNATURES.items()}
    if got != functions:
        sys.exit(f"functions: {sorted(got.items() ^ functions.items())}")
    print(f"{len(structs)} structs, {len(functions)} functions, 16 codes, as in the headers")


if __name__ == "__main__":
    main()
