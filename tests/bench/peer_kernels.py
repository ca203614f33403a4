"""ckv's kernel beside vLLM's for MLA decode on a CPU, both writing bf16 (peers/kernel_peer.py).

    python3 tests/bench/peer_kernels.py BUILD_DIR
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "engines"), str(HERE.parent / "engines/vllm")]
import venv  # noqa: E402
import venvs  # noqa: E402
from bar import NOT_HERE  # noqa: E402

ROUNDS = 15
LIMIT_S = 600


def figures(build):
    """{"8 x 2048, wire": {"ratio": vLLM's time over ckv's, "vllm_us", "ckv_us"}, ...}, on one thread."""
    try:
        python = venv.python()
    except venvs.Unavailable as error:
        return {NOT_HERE: f"no stock vLLM: {error}"}
    done = subprocess.run([python, HERE / "peers/kernel_peer.py", build.resolve() / "bin/libattend_kernel.so", str(ROUNDS), "1"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, env={
                              **os.environ, **venvs.kept_bytecode(python), "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise RuntimeError(f"kernel_peer.py: exit code {done.returncode}: {' '.join(done.stderr.split())[-400:]}")
    made = {}
    for case, times in json.loads(done.stdout.splitlines()[-1])["cases"].items():
        for precision in ("wire", "fast"):
            made[f"{case}, {precision}"] = {
                "ratio": statistics.median(v / c for v, c in zip(times["vllm"], times[precision])),
                "vllm_us": statistics.median(times["vllm"]) / 1e3, "ckv_us": statistics.median(times[precision]) / 1e3}
    return made


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
