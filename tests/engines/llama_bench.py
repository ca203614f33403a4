#!/usr/bin/env python3
"""Times one layer's attention: stock llama.cpp, libggml-ckv.so over the engine's own cells, and over
a corpus of a holder on this host (shm). Prints a table. It is no test: times are of the machine.

    llama_bench.py --ckvd ... --ckvctl ... --backend libggml-ckv.so --work DIR
"""

import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import ctl_fleet  # noqa: E402
import engines  # noqa: E402
import llama_e2e as base  # noqa: E402
import route_fixture  # noqa: E402

CELLS, ROUNDS = 2048, 200


def times(program, engine, threads, tokens, heads, environment, *state):
    run = subprocess.run([program, engine.libraries, str(threads), str(ROUNDS), str(CELLS),
                          str(tokens), str(heads), *map(str, state)], capture_output=True,
                         text=True, check=True, env={**os.environ, **environment})
    return {line.split()[0]: int(line.split()[1]) for line in run.stdout.splitlines()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("ckvd", "ckvctl"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("backend", "work"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--threads", default="1", help="counts, like 1,2")
    arguments = parser.parse_args()
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    work = arguments.work.absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    engine = engines.Engine(work)
    host, program = work / "llama_host", work / "llama_attention"
    engine.compile(arguments.cxx, HERE / "llama_host.cc", host)
    engine.compile(arguments.cxx, HERE / "llama_attention.cc", program)
    subprocess.run([host, "model", work / "tiny.gguf"], check=True)
    ids = [byte + 3 for byte in base.TEXT.read_bytes()[:CELLS]]
    (work / "docs").write_bytes(struct.pack(f"<{CELLS}i", *ids))
    subprocess.run([host, "run", engine.libraries, work / "tiny.gguf", f"tokens={work / 'docs'}",
                    f"save={work / 'docs.ggsq'}"], check=True, stderr=subprocess.DEVNULL)
    (work / "geometry.json").write_text(json.dumps(base.GEOMETRY))
    fleet = route_fixture.Fleet(work / "fleet", 1, "shm,tcp")
    try:
        fleet.load("docs", work / "docs.ggsq", chunk=CELLS)
        state = fleet.attach("docs")
        backend = {"GGML_BACKEND_PATH": str(arguments.backend.absolute()),
                   "CKV_DIRECTORY": fleet.directory}
        print("threads tokens  stock us   ckv us  stock/ckv  routed us  routed/ckv  near us")
        for threads in map(int, arguments.threads.split(",")):
            for tokens in (1, 8, 64):
                own = times(program, engine, threads, tokens, 16, backend)
                routed = times(program, engine, threads, tokens, 16,
                               {**backend, "CKV_GGML_POLICY": "route"}, state)["CKV"]
                near = times(program, engine, threads, tokens, 16,
                             {**backend, "CKV_GGML_POLICY": "near"}, state)["CKV"]
                print(f"{threads:7} {tokens:6} {own['CPU']:9} {own['CKV']:8} "
                      f"{own['CPU'] / own['CKV']:10.2f} {routed:10} {routed / own['CKV']:11.2f} "
                      f"{near:8}")
    finally:
        fleet.stop()
        shutil.rmtree(work / "node_modules", ignore_errors=True)


if __name__ == "__main__":
    main()
