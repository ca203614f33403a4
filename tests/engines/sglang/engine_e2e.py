#!/usr/bin/python3
"""Goal: a prompt that one SGLang engine has prefilled is loaded from ckv by another one, which answers the same.

Method: SGLang 0.5.23's engine on a CPU with a small model of random weights, twice, each with its scheduler's process.
cpu_fix adds what SGLang lacks there. It changes nothing in HiCache's tree, controllers and storage.

SGLang is downloaded from PyPI (environment.py). If it is unavailable, this is SKIPPED: exit code 77.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "tests/support"), str(ROOT / "tests/e2e")]
import ctl_fleet  # noqa: E402
import environment  # noqa: E402
import venvs  # noqa: E402

TIMEOUT_S, WAIT_S = 200, 20
OFF_MAX = 1e-3  # of a logprob
PROMPT_PAGES = 18 * 32  # tokens of the prompt's whole pages
# SGLang's own RoPE for this model needs it.
YARN = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 0.707, "mscale_all_dim": 0.707}


def require(holds, what):
    if not holds:
        sys.exit(f"engine_e2e: {what}")


def model(python, folder):
    subprocess.run([python, HERE.parent / "vllm/make_model.py", folder, "2"], check=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": YARN}))
    return folder


def serve(python, arguments, where, directory):
    """The two answers of an engine. The engine has ended with all of its processes."""
    paths = [HERE / "cpu_fix", ROOT / "client/bindings/python"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **venvs.kept_bytecode(python),
                 "PYTHONWARNINGS": "ignore", "CKV_LIBRARY": arguments.library, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen([python, HERE / "engine.py", "--model", where, "--directory", directory], env=variables,
                               stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    answers = [json.loads(line) for line in said.splitlines() if line.startswith('{"answer"')]
    require(len(answers) == 2, f"no answers, exit code {process.returncode}")
    return answers


def published(arguments, directory):
    """Waits until the pages of the first engine are stored. SGLang writes them after the answer."""
    shown = ""
    for _ in range(WAIT_S * 5):
        shown = subprocess.run([arguments.ckvctl, "--directory", directory, "corpus", "list"], capture_output=True,
                               text=True, check=True).stdout
        if f" {PROMPT_PAGES} " in shown:
            return
        time.sleep(0.2)
    require(False, f"the prompt's {PROMPT_PAGES} tokens are not published:\n{shown}")


def run(arguments, python, folder):
    fleet = ctl_fleet.Fleet(folder, holders=2)
    try:
        where = model(python, folder / "model")
        first = serve(python, arguments, where, fleet.directory)
        require([one["storage"] for one in first] == [0, 0], f"the first engine loads what nobody stored: {first}")
        published(arguments, fleet.directory)
        second = serve(python, arguments, where, fleet.directory)
        require([one["storage"] for one in second] == [PROMPT_PAGES, 0], f"the second one did not load: {second}")
        # Both compute the prompt's last 24 tokens over the same rows: one over its own, one over loaded ones.
        own, loaded = first[1], second[0]
        require(own["device"] == PROMPT_PAGES and own["answer"] == loaded["answer"],
                f"answers differ: {own}, {loaded}")
        off = max(abs(a - b) for a, b in zip(own["logprobs"], loaded["logprobs"]))
        require(off <= OFF_MAX, f"logprobs are off by {off}: {own}, {loaded}")
    finally:
        fleet.stop()
    print(f"the second engine loaded {PROMPT_PAGES} of 600 tokens, and answers as the first; logprobs are off by {off}")
    return 0


if __name__ == "__main__":
    sys.exit(environment.run_test(__doc__.split("\n")[0], run))
