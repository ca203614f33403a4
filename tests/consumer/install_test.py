#!/usr/bin/python3
"""Goal: a project that has only the files of `cmake --install` builds, and attends over a fleet.

Method: install into a prefix; build tests/consumer/outside by find_package (static and shared) and
its engine.cc and engine.c by pkg-config; run all of them against a directory, two holders and a corpus. Each
answer is compared with float64.

    python3 tests/consumer/install_test.py --build build/dev --ckvd ... --ckvctl ...
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from ctl_fleet import D_QK, PROGRAMS, Fleet, Rows, attend, from_bf16  # noqa: E402

TOKENS = 96
# Relative error: 2^-8 for a bf16 partial of each holder, and as much for the merge.
TOLERANCE = 2 ** -7


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(part) for part in command)}\nexit {done.returncode}\n{done.stdout}")
    return done.stdout


def build_outside(build, folder):
    """Builds the programs of a project outside ckv's tree. The names of their paths state how they find the library."""
    prefix, source, out = folder / "prefix", folder / "outside", folder / "out"
    for component in ("library", "development"):
        run("cmake", "--install", build, "--prefix", prefix, "--component", component)
    shutil.copytree(HERE / "outside", source)  # a copy without any of ckv's tree around it
    run("cmake", "-S", source, "-B", out, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Debug")
    run("cmake", "--build", out)
    (pkgconfig,) = prefix.rglob("ckv.pc")
    library = pkgconfig.parent.parent
    by_pkg_config = {"cc": folder / "engine_pkg_config", "c": folder / "engine_c_pkg_config"}
    for module, compiler, language in (("ckv_cc", ["c++", "-std=c++20"], "cc"), ("ckv", ["cc", "-std=c11"], "c")):
        flags = run("pkg-config", "--cflags", "--libs", module,
                    env={**os.environ, "PKG_CONFIG_PATH": str(pkgconfig.parent)}).split()
        run(*compiler, source / f"engine.{language}", "-o", by_pkg_config[language], f"-Wl,-rpath,{library}", *flags)
    return [out / "engine_client_grpc", out / "engine_shared", out / "engine_c", *by_pkg_config.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    arguments = parser.parse_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        engines = build_outside(arguments.build, folder)
        fleet = Fleet(folder, holders=2)
        try:
            rows = Rows(seed=1, tokens=TOKENS, position=0)
            rows.write(folder / "rows.safetensors")
            run(PROGRAMS.ckvctl, "--directory", fleet.directory, "corpus", "load", "outside",
                folder / "rows.safetensors", "--chunk-tokens", TOKENS // 2)
            layer = [[from_bf16(bits) for bits in row] for row in rows.layers[0]]
            ((o, m, _),) = attend([[1.0] * D_QK], layer)
            for engine in engines:
                words = run(engine, fleet.directory, "outside").replace(",", "").split()
                if words[0] != "2":
                    sys.exit(f"{engine.name}: {words[0]} chunks, not 2")
                for what, got, want in [("m", float(words[3]), m), ("o[0]", float(words[7]), o[0])]:
                    if abs(got - want) > TOLERANCE * max(1, abs(want)):
                        sys.exit(f"{engine.name}: {what} is {got}, in float64 {want}")
                print(f"{engine.name}: {' '.join(words)}")
        finally:
            fleet.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
