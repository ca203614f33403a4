#!/usr/bin/python3
"""Goal: libckv.so shows the functions of ckv.h and nothing else, each in its version.

    python3 tests/client/c/symbols_test.py LIBRARY HEADER...
"""

import pathlib
import re
import subprocess
import sys


def main():
    library, headers = sys.argv[1], sys.argv[2:]
    shown = subprocess.run(["nm", "-D", "--defined-only", library], check=True, text=True,
                           capture_output=True).stdout
    functions, others = set(), []
    for line in shown.splitlines():
        kind, symbol = line.split()[-2:]
        if kind == "T" and symbol.endswith("@@CKV_1"):
            functions.add(symbol.split("@")[0])
        elif (kind, symbol) != ("A", "CKV_1"):
            others.append(line)
    text = "".join(re.sub(r"//[^\n]*", "", pathlib.Path(name).read_text()) for name in headers)
    declared = set(re.findall(r"\b(ckv_[a-z_0-9]+)\([^;{]*\);", text))
    if others or functions != declared:
        sys.exit(f"not of the ABI: {others}\nnot declared: {sorted(functions - declared)}\n"
                 f"not shown: {sorted(declared - functions)}")
    print(f"{len(functions)} functions, and nothing else")


if __name__ == "__main__":
    main()
