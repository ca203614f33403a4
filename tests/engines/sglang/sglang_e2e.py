#!/usr/bin/python3
"""Goal: another SGLang instance loads the pages that one backs up, bit for bit, and no failure of ckv reaches
SGLang's threads.

Method: SGLang 0.5.23 from PyPI: its factory, HiCacheController and HybridCacheController over real holders, on host
memory. writer.py backs pages up in every layout and by both interfaces, and ends. reader.py, another process, loads
them in every other one. Then the directory and holders stop, end and return.

No model runs here: see engine_e2e.py. SGLang is downloaded from PyPI (environment.py). If it is unavailable, this is
SKIPPED: exit code 77.
"""

import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "tests/support"), str(ROOT / "tests/e2e")]
import ctl_fleet  # noqa: E402
import environment  # noqa: E402
import venvs  # noqa: E402

TIMEOUT_S = 240


def run(arguments, python, folder):
    fleet = ctl_fleet.Fleet(folder, holders=2)
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "client/bindings/python"), **venvs.kept_bytecode(python),
                 "PYTHONWARNINGS": "ignore", "CKV_LIBRARY": arguments.library, "HF_HUB_OFFLINE": "1"}
    pids = ",".join(str(process.pid) for process in fleet.processes[:3])
    try:
        command = [python, HERE / "instances.py", "--directory", fleet.directory, "--pids", pids, "--ckvctl",
                   arguments.ckvctl]
        return subprocess.run(command, env=variables, cwd=folder, timeout=TIMEOUT_S, check=False).returncode
    finally:
        fleet.stop()


if __name__ == "__main__":
    sys.exit(environment.run_test(__doc__.split("\n")[0], run))
