#!/usr/bin/python3
"""Goal: in stock vLLM, requests attend corpora where they lie, load them, and publish them: exactly as vLLM
itself would have computed. No failure leaves its request.

Method: vLLM 0.32.0 for CPUs from PyPI, a model of 4 layers with V2-Lite's widths of attention and random weights of a
real scale, three holders. engine.py runs in vLLM's process. Every answer's logprobs are compared with the same model
in float32: the error may not be above vLLM's own.

vLLM comes from PyPI (venv.py). If it cannot be had, all of this is SKIPPED: exit code 77.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "tests/support"), str(ROOT / "tests/e2e")]
import ctl_fleet  # noqa: E402
import skip  # noqa: E402
import venv  # noqa: E402

LAYERS = 4
TIMEOUT_S = 240


def plugin(folder):
    """What pip would have installed of the plug-in: the entry point by which vLLM finds it."""
    metadata = folder / "ckv_vllm-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ckv-vllm\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[vllm.general_plugins]\nckv = ckv_vllm:register\n")
    return folder


class Fleet(ctl_fleet.Fleet):
    def __init__(self, folder):
        self.folder, self.processes, self.durable = folder, [], False
        self.directory = self.start("directory", "--role=directory")
        self.holders = []
        for i in range(3):
            self.start(f"h{i}", "--role=holder", f"--directory={self.directory}", "--store-capacity=256MiB")
            self.holders.append(self.processes[-1].pid)


def run(case, python, environment, model, arguments):
    with tempfile.TemporaryDirectory(prefix="ckv-vllm-") as name:
        fleet = Fleet(pathlib.Path(name))
        try:
            return subprocess.run(
                [python, HERE / "engine.py", case, "--model", model, "--directory", fleet.directory, "--ckvctl",
                 arguments.ckvctl, "--holders", ",".join(map(str, fleet.holders))],
                env=environment, timeout=TIMEOUT_S, check=False).returncode
        finally:
            fleet.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--ckvd", "--ckvctl", "--library"):
        parser.add_argument(name, required=True)
    parser.add_argument("cases", nargs="*", default=["all", "few-blocks", "ranks"])
    arguments = parser.parse_args()
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    if not pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return skip.lacks(f"{sys.executable} has no Python.h, with which PyTorch compiles")
    try:
        python = venv.python()
    except venv.Unavailable as error:
        return skip.cannot(f"no stock vLLM: {error}", venv.PIP)
    with tempfile.TemporaryDirectory(prefix="ckv-vllm-") as name:
        folder = pathlib.Path(name)
        site, model = plugin(folder / "site"), folder / "model"
        subprocess.run([python, HERE / "make_model.py", model, str(LAYERS)], check=True)
        paths = [HERE / "rope_fix", site, ROOT / "client/python"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1",
                       "CKV_LIBRARY": arguments.library, "VLLM_PLUGINS": "ckv"}
        return max(run(case, python, environment, model, arguments) for case in arguments.cases)


if __name__ == "__main__":
    sys.exit(main())
