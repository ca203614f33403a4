#!/usr/bin/python3
"""Goal: libckv.so shows the functions of ckv.h and nothing else, each in a version up to the header's.

    python3 tests/client/bindings/c/symbols_test.py LIBRARY HEADER...
"""

import pathlib
import re
import subprocess
import sys


def main():
    library, headers = sys.argv[1], sys.argv[2:]
    shown = subprocess.run(["nm", "-D", "--defined-only", library], check=True, text=True,
                           capture_output=True).stdout
    text = "".join(pathlib.Path(name).read_text() for name in headers)
    major, minor = (int(re.search(rf"#define CKV_API_{part} (\d+)", text).group(1)) for part in ("MAJOR", "MINOR"))
    nodes = {f"CKV_{major}.{number}" for number in range(minor + 1)}
    functions, others = set(), []
    for line in shown.splitlines():
        kind, symbol = line.split()[-2:]
        name, _, node = symbol.partition("@@")
        if kind == "T" and node in nodes:
            functions.add(name)
        elif kind != "A" or symbol not in nodes:
            others.append(line)
    declared = set(re.findall(r"\b(ckv_[a-z_0-9]+)\([^;{]*\);", re.sub(r"//[^\n]*", "", text)))
    if others or functions != declared:
        sys.exit(f"not of the ABI: {others}\nnot declared: {sorted(functions - declared)}\n"
                 f"not shown: {sorted(declared - functions)}")
    print(f"{len(functions)} functions, and nothing else")


if __name__ == "__main__":
    main()
