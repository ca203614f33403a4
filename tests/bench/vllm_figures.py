"""Figures of the plug-in in stock vLLM (tests/engines/vllm), for `bars.py vllm`.

vLLM is installed from PyPI. If that is impossible, every row reports it.
"""

import functools
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "engines/vllm"), str(HERE.parent / "support"), str(HERE.parent / "e2e"), str(HERE / "field")]
import stock  # noqa: E402
import broken_fleet  # noqa: E402
import ctl_fleet  # noqa: E402
import venv  # noqa: E402
from bar import NOT_HERE  # noqa: E402

LAYERS = (4, 27)
OTHER_VERSION = "0.31.0"  # of vLLM, in addition to the pinned one
TIMEOUT_S = 1800
WALK_STEPS, WALK_SEED = 100000, 1
KILLS, STOPPED_S, GONE_S, PAUSE_S = 50, 3.0, 1.0, 2.0


def run_case(one, layers, case):
    """The figures of a case, over a fleet of its own. Raises RuntimeError if the case fails."""
    print(f"vllm: {case}, {layers} layers", file=sys.stderr, flush=True)
    with stock.fleet(capacity="4GiB") as fleet:
        done = one.run("figures.py", case, one.model(layers), fleet, TIMEOUT_S, stdout=subprocess.PIPE, text=True)
    said = re.search(r"^figures: (.*)$", done.stdout, re.M)
    if done.returncode != 0 or not said:
        raise RuntimeError(f"{case}, {layers} layers: exit code {done.returncode}: {done.stdout[-2000:]}")
    return json.loads(said.group(1))


def walk(one):
    """The steps of the random walk over vLLM's scheduler: WALK_STEPS, or 0 if the walk failed."""
    done = subprocess.run([one.python, stock.HERE / "walk.py", "--model", one.model(4), "--steps", str(WALK_STEPS), "--seed",
                           str(WALK_SEED)], env=one.environment, timeout=TIMEOUT_S, stdout=sys.stderr, check=False)
    return {"steps": WALK_STEPS if done.returncode == 0 else 0}


def exit_of(build, script, *more):
    """The exit code of a test of tests/engines."""
    command = [sys.executable, HERE.parent / "engines" / script, "--ckvd", build / "bin/ckvd", "--ckvctl", build / "bin/ckvctl",
               "--library", (build / "client/bindings/c/libckv.so.1").resolve(), *more]
    return {"exit": subprocess.run(command, timeout=TIMEOUT_S, stdout=sys.stderr, check=False).returncode}


def ranks(one):
    """What holders sent to two ranks and their host's cache for rows that both need, relative to one copy."""
    with stock.fleet(cached=True) as fleet:
        done = one.run("engine.py", "ranks", one.model(4), fleet, TIMEOUT_S, stdout=subprocess.PIPE, text=True)
    return json.loads(re.search(r"^figures: (\{.*)$", done.stdout, re.M).group(1))


def kill_50(one):
    """50 kills of holders and the directory, in turn, while eight requests decode over a corpus with two copies.

    A killed daemon restarts with its folder; a stopped one continues after 3 s.
    """
    rng = random.Random(3)
    with tempfile.TemporaryDirectory(prefix="ckv-kills-") as name:
        fleet = broken_fleet.Broken(pathlib.Path(name), users=False, capacity="256MiB")
        try:
            environment = {**one.environment, "PYTHONUNBUFFERED": "1"}
            engine = subprocess.Popen(
                [one.python, stock.HERE / "figures.py", "kills", "--model", one.model(4), "--directory", fleet.directory, "--ckvctl",
                 ctl_fleet.PROGRAMS.ckvctl, "--directory-pid", "0", "--holders", "0"], env=environment, stdout=subprocess.PIPE, text=True)
            try:
                for line in engine.stdout:
                    if "figures: serves" in line:
                        break
                for i in range(KILLS):
                    _kill(fleet, rng.choice(("h0", "h1", "directory")), (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)[i % 3])
                    fleet.live(PAUSE_S)
                engine.send_signal(signal.SIGTERM)
                said, _ = engine.communicate(timeout=120)
                return {**json.loads(re.search(r"^figures: (\{.*)$", said, re.M).group(1)), "kills": KILLS}
            finally:
                engine.kill()
                engine.wait()
        finally:
            fleet.stop()


def _kill(fleet, name, number):
    if number == signal.SIGSTOP:
        fleet.hold(name)
        fleet.live(STOPPED_S)
        fleet.by_name[name].send_signal(signal.SIGCONT)
        return
    fleet.end(name, number)
    fleet.live(GONE_S)
    fleet.again(name)


CASES = [("exact", LAYERS), ("mixes", (4,)), ("first-token", LAYERS), ("decode", LAYERS), ("blocks", LAYERS), ("publish", LAYERS),
         ("cost", LAYERS)]


def figures(build):
    """{case/layers: {figure: value}}."""
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = build / "bin/ckvd", build / "bin/ckvctl"
    if not stock.has_headers():
        return {NOT_HERE: stock.NO_HEADERS}
    with tempfile.TemporaryDirectory(prefix="ckv-vllm-") as name:
        try:
            one = stock.Stock(pathlib.Path(name), (build / "client/bindings/c/libckv.so.1").resolve())
        except venv.Unavailable as error:
            return {NOT_HERE: f"no stock vLLM: {error}"}
        found = {}
        for name, take in (("sglang", lambda: exit_of(build, "sglang/engine_e2e.py")),
                           ("other", lambda: exit_of(build, "vllm/vllm_e2e.py", "--version", OTHER_VERSION)),
                           ("engines", lambda: exit_of(build, "vllm/quickstart.py", "--tokens", "1024", "--engines", "2")),
                           ("walk", lambda: walk(one)), ("ranks", lambda: ranks(one)), ("kills", lambda: kill_50(one)),
                           *((f"{case}/{layers}", functools.partial(run_case, one, layers, case))
                             for case, sizes in CASES for layers in sizes)):
            try:
                found[name] = take()
            except (RuntimeError, OSError, AttributeError, subprocess.SubprocessError) as error:
                found[name] = {}
                print(f"vllm: {name} failed: {error}", file=sys.stderr, flush=True)
            print(f"vllm: {name}: {found[name]}", file=sys.stderr, flush=True)
        return found


if __name__ == "__main__":  # vllm_figures.py BUILD_DIR CASE LAYERS
    build = pathlib.Path(sys.argv[1]).resolve()
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = build / "bin/ckvd", build / "bin/ckvctl"
    with tempfile.TemporaryDirectory(prefix="ckv-vllm-") as folder:
        if sys.argv[2] == "kills":
            print(json.dumps(kill_50(stock.Stock(pathlib.Path(folder), build / "client/bindings/c/libckv.so.1"))))
            sys.exit(0)
        print(json.dumps(run_case(stock.Stock(pathlib.Path(folder), build / "client/bindings/c/libckv.so.1"), int(sys.argv[3]), sys.argv[2])))
