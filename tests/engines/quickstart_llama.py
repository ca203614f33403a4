#!/usr/bin/python3
"""Runs eight agents of stock node-llama-cpp over one text, which stays on three holders.

The engine prefills the text once, and it becomes a corpus. Then the agents continue it together:
each with all rows in its own sequence (also without libggml-ckv.so, with the engine's own kernel),
each with a reference, and all with a setting. Every token is compared. A table reports time, memory
and bytes, and a line the prefills saved. A token that differs is a failure, unless both tokens are
equally likely within rounding. No time is a failure.

    quickstart_llama.py --ckvd ... --ckvctl ... --backend libggml-ckv.so --work DIR

The model is random: answers can be compared, but their text has no meaning. The engine is
downloaded from npm (engines.py). If it is unavailable, this is SKIPPED: exit code 77.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import ctl_fleet  # noqa: E402
import engines  # noqa: E402
import llama_e2e as base  # noqa: E402
import route_fixture  # noqa: E402
import skip  # noqa: E402
from quickstart_table import mib, table  # noqa: E402

AGENTS, COUNT, ROOM, CHUNK = 8, 32, 256, 512
TIMEOUT_S = 300
HEAD = ("agents", "s", "equal tokens", "cache", "process", "restored", "from holders")
# Two tokens count as equally likely if rounding can swap them. Rows of tokens are rounded to bf16,
# and logits of this model then err by up to .01 (ROUNDED of llama_route_e2e.py). If the text is at
# another position, all rows are rounded again, and the engine's own logits err by .03.
RATIO_HERE, RATIO_ELSEWHERE = 1.02, 1.06


class Run:
    def __init__(self, arguments, engine, fleet, model):
        self.arguments, self.engine, self.fleet, self.model = arguments, engine, fleet, model
        self.program = arguments.work / "quickstart_llama.mjs"  # next to node_modules
        shutil.copy(HERE / "quickstart_llama.mjs", self.program)

    def app(self, settings, backend=True, **asked):
        path = self.arguments.work / "asked.json"
        path.write_text(json.dumps({"model": str(self.model), "count": COUNT, **asked}))
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("CKV_", "GGML_"))}
        if backend:
            environment.update(GGML_BACKEND_PATH=str(self.arguments.backend),
                               CKV_DIRECTORY=self.fleet.directory,
                               CKV_GGML_KERNEL_TARGET=route_fixture.kernel_target(), **settings,
                               **route_fixture.sanitizer())
        run = subprocess.run([self.engine.node, self.program, path], capture_output=True, text=True,
                             timeout=TIMEOUT_S, env=environment)
        if run.returncode != 0:
            sys.exit(f"node-llama-cpp: {run.stderr}")
        return json.loads(run.stdout)

    def bytes_out(self):
        """Bytes that the holders have sent."""
        status = self.fleet.ctl("status")
        return sum(member["bytes_out"] for member in status["holders"])


def compare(name, agents, due, ratio):
    """Counts the tokens that are as due, up to the first tie: after it an agent's text differs."""
    same = 0
    for number, (got, wanted) in enumerate(zip(agents, due)):
        for i, (a, b) in enumerate(zip(got, wanted)):
            if a[0] == b[0]:
                same += 1
                continue
            if a[1] / a[3] > ratio or b[1] / b[3] > ratio:
                sys.exit(f"{name}: token {i} of agent {number} is {a}, and {b} is due")
            break
    return same


def run(arguments, engine, fleet):
    work = arguments.work
    host, model = work / "llama_host", work / "tiny.gguf"
    engine.compile(arguments.cxx, HERE / "llama_host.cc", host)
    subprocess.run([host, "model", model], check=True, timeout=TIMEOUT_S)
    runs = Run(arguments, engine, fleet, model)
    text = arguments.text.read_bytes()[:arguments.tokens]
    ids = [byte + 3 for byte in text]
    state = work / "text.ggsq"
    (work / "geometry.json").write_text(json.dumps(base.GEOMETRY))

    print(f"== the engine prefills {len(ids)} tokens of {arguments.text}, once")
    prefill_s = runs.app({}, context=len(ids) + ROOM,
                         prefill={"tokens": ids, "save": str(state)})["ms"] / 1e3
    fleet.load("text", state, chunk=CHUNK)
    rows = fleet.folder / "rows.ggsq"
    fleet.ctl("fetch", "--corpus", "text", "--out", rows, "--position", 0, "--streams", AGENTS)
    reference = fleet.attach("text", "--position", 0, streams=AGENTS)

    # Each agent has another suffix: words of the text.
    suffixes = [ids[97 * i:97 * i + 5 + i] for i in range(AGENTS)]
    cell = base.LAYERS * base.D_QK * 2
    whole, lines = len(ids) + ROOM, []

    def mode(name, settings, restore, context, due, ratio, backend=True):
        before = runs.bytes_out()
        done = runs.app(settings, backend, context=context,
                        agents=[{"restore": restore and str(restore), "suffix": suffix}
                                for suffix in suffixes])
        same = compare(name, done["agents"], due or done["agents"], ratio)
        size = restore.stat().st_size if restore else 0
        lines.append((name, f"{done['ms'] / 1e3:.2f}", f"{same} of {AGENTS * COUNT}",
                      mib(AGENTS * context * cell), mib(done["rss"]), mib(AGENTS * size),
                      mib(runs.bytes_out() - before)))
        return done["agents"]

    print(f"== {AGENTS} agents decode {COUNT} tokens each behind it")
    due = mode("have the rows", {}, rows, whole, None, 1)
    mode("the same, the engine's kernel", {}, rows, whole, due, RATIO_HERE, backend=False)
    mode("have a reference, route", {"CKV_GGML_POLICY": "route"}, reference, whole, due, RATIO_HERE)
    mode("have a reference, auto", {}, reference, whole, due, RATIO_HERE)
    mode("share a setting, route", {"CKV_GGML_POLICY": "route", "CKV_GGML_CORPUS": "text"}, None,
         ROOM, due, RATIO_ELSEWHERE)
    table(HEAD, lines)
    print("cache: the engine's, allocated for all sequences. node-llama-cpp has room for all tokens "
          "of a\nreference, though it has no rows of them. restored: files of all agents.\n"
          f"The text was prefilled once, in {prefill_s:.2f} s. {AGENTS} agents that each do it take "
          f"{AGENTS * prefill_s:.2f} s: {(AGENTS - 1) * prefill_s:.2f} s are saved.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("ckvd", "ckvctl"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("backend", "work"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--text", type=pathlib.Path, default=base.TEXT)
    parser.add_argument("--tokens", type=int, default=4096, help="of the text, a byte each")
    arguments = parser.parse_args()
    arguments.work = arguments.work.absolute()
    arguments.backend = route_fixture.PROGRAMS.backend = arguments.backend.absolute()
    route_fixture.PROGRAMS.cxx = arguments.cxx
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    shutil.rmtree(arguments.work, ignore_errors=True)
    arguments.work.mkdir(parents=True)
    try:
        engine = engines.Engine(arguments.work)
    except engines.Unavailable as error:
        return skip.cannot(f"no stock llama.cpp: {error}", skip.NPM)
    fleet = None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the fleet is stopped
    try:
        fleet = route_fixture.Fleet(arguments.work / "fleet", 3, "tcp")
        run(arguments, engine, fleet)
    finally:
        if fleet is not None:
            fleet.stop()
        shutil.rmtree(arguments.work / "node_modules", ignore_errors=True)  # 227 MB
    return 0


if __name__ == "__main__":
    sys.exit(main())
