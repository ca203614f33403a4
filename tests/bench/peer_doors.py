"""The same routed call from C++, C and Python, in turns: what a door of the library costs.

    python3 tests/bench/peer_doors.py BUILD_DIR
"""

import contextlib
import json
import pathlib
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import peer_transfers  # noqa: E402
from peer_transfers import Asked  # noqa: E402

ROWS, CALLS, ROUNDS, WARM_UP = (1, 16), 500, 21, 10
CORPUS = "short"  # 16 tokens


def figures(build):
    """{"16 rows": {"cc_us": C++'s median, "c_added_us": what C adds to it round by round, "python_added_us"}, ...}"""
    build = build.resolve()
    with tempfile.TemporaryDirectory(prefix="ckv-doors-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        directory, _ = peer_transfers.fleet_with(stack, folder, build, {CORPUS: 16})
        cc = Asked(stack, folder / "cc.log", [build / "bin/cc_loop", directory, CORPUS])
        c = Asked(stack, folder / "c.log", [build / "bin/c_loop", directory, "shm"])
        python = Asked(stack, folder / "python.log", [sys.executable, HERE / "peers/py_loop.py", directory, CORPUS],
                       **peer_transfers.binding(build))
        made = {}
        for rows in ROWS:
            lines = {"cc": (cc, f"{rows} {CALLS + WARM_UP}"), "c": (c, f"route {CORPUS} {rows} {CALLS + WARM_UP}"),
                     "python": (python, f"{rows} {CALLS + WARM_UP}")}
            rounds = {door: [] for door in lines}
            for number in range(ROUNDS + 1):
                for door, (program, line) in lines.items():
                    times = [int(one) for one in program.ask(line).split()][WARM_UP:]
                    if number > 0:
                        rounds[door].append(statistics.median(times) / 1e3)
            added = {f"{door}_added_us": statistics.median(its - floor for its, floor in zip(rounds[door], rounds["cc"]))
                     for door in ("c", "python")}
            made["1 row" if rows == 1 else f"{rows} rows"] = {"cc_us": statistics.median(rounds["cc"]), **added}
    return made


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
