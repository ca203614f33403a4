"""What the Python and C bindings add to a call: real daemons on this host, libckv.so, and the package of client/bindings/python.

    python3 tests/bench/bindings_figures.py BUILD_DIR

Programs that make the same calls take turns, so that the machine's noise affects both. Debian's Python runs the
package, because Debian's numpy is built for it.
"""

import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import fleet  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
PYTHON = sys.executable  # deploy/python.sh runs bars.py
CALLS, TURNS = 2000, 9
PUTS, EXTENSIONS, FETCHES = 7, 15, 7
CAPACITY = "3GiB"  # 2 x 8 chunks of 64 MB, and 124 MB of small ones, even if the directory places all on one holder
DOORS = "c_abi_e2e|python_e2e"


class Asked:
    """A program that answers each line with one line."""

    def __init__(self, *command, **environment):
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, **environment})

    def ask(self, number):
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        if not said:
            raise RuntimeError(f"{self.process.args[0]} ended: exit code {self.process.wait()}")
        return json.loads(said)

    def end(self):
        self.process.stdin.close()
        if self.process.wait(timeout=60) != 0:
            raise RuntimeError(f"{self.process.args[0]}: exit code {self.process.returncode}")

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error is None:
            self.end()
        else:
            self.process.kill()
            self.process.wait()


def python(build, work, directory, corpus):
    return Asked(PYTHON, HERE / "bindings" / "python_calls.py", work, directory, corpus,
                 PYTHONPATH=str(SOURCE / "client" / "bindings" / "python"), CKV_LIBRARY=str(build / "client/bindings/c/libckv.so"))


def submits(build, directory, corpus):
    with python(build, "submit", directory, corpus) as py:
        py.ask(1)  # this call creates the corpus
        with Asked(build / "bin/c_submit_loop", directory, corpus) as c:
            pairs = [(c.ask(CALLS), py.ask(CALLS)["median_ns"]) for _ in range(TURNS + 1)][1:]
    return {"c_us": statistics.median(c for c, _ in pairs) / 1e3,
            "added_us": statistics.median(py - c for c, py in pairs) / 1e3}


def puts(build, directory):
    """Each program adds 64 MB to the corpus "puts" in each turn."""
    with python(build, "put", directory, "puts") as py:
        said = py.ask(0)  # this call creates the corpus, which the other program extends
        with Asked(build / "bin/put_loop", directory, "puts") as cc:
            cc.ask(1)
            ns = [(cc.ask(2 * turn), py.ask(2 * turn + 1)["ns"]) for turn in range(1, PUTS + 1)]
    return {"ratio": statistics.median(c / p for c, p in ns),
            "load_gb_per_s": said["bytes"] / statistics.median(c for c, _ in ns)}


def extensions(build, directory):
    with python(build, "extend", directory, "thousand") as py:
        py.ask(10_000_000)
        said = [py.ask(10_000_001 + turn) for turn in range(EXTENSIONS)]
    return {"ms": statistics.median(one["ns"] for one in said) / 1e6, "chunks": said[0]["chunks"],
            "others_touched": sum(one["others_touched"] for one in said)}


def layers(build, directory):
    with python(build, "layers", directory, "puts") as py:
        said = py.ask(FETCHES)
    return {"ratio": said["first_ns"] / said["whole_ns"], "whole_ms": said["whole_ns"] / 1e6}


def doors(build):
    """Runs the tests that compare each binding with the C++ client. One program uses the header's first version."""
    done = subprocess.run(["ctest", "--test-dir", str(build), "-R", f"^({DOORS})$"], capture_output=True, text=True)
    ran = re.search(r"(\d+) tests? failed out of (\d+)", done.stdout)
    if ran is None or int(ran.group(2)) != len(DOORS.split("|")):
        raise RuntimeError(f"the tests of the doors did not run: {done.stdout[-1000:]}{done.stderr[-500:]}")
    return {"failed": int(ran.group(1)), "count": int(ran.group(2))}


def figures(build):
    build = build.resolve()
    with tempfile.TemporaryDirectory(prefix="ckv-bindings-") as name, contextlib.ExitStack() as daemons:
        folder = pathlib.Path(name)
        start = lambda *options: daemons.enter_context(fleet.daemon(build, folder, (), *options))  # noqa: E731
        directory = start("--role=directory", "--listen=127.0.0.1:0")
        for holder in range(3):
            start("--role=holder", f"--name=h{holder}", "--listen=127.0.0.1:0", f"--directory={directory}",
                  f"--store-capacity={CAPACITY}")
        made = {"extend": extensions(build, directory), "put": puts(build, directory)}
        made["layers"] = layers(build, directory)
        made["submit"] = submits(build, directory, "small")
    made["doors"] = doors(build)
    return made


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
