"""Two holders of every chunk: one is killed or stopped again and again, or stops for two seconds in ten.

    python3 tests/bench/fleet_faults.py BUILD_DIR

The fleet and its callers are those of tests/e2e/rolling_restart_e2e.py. Callers use gRPC and C, without a pause, and compare the
bits of each answer with those of the first.
"""

import json
import pathlib
import re
import signal
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tests/bench")]
from priority import usual_priority  # noqa: E402

HOLDERS, KILLS = 2, 500
CALM_S, SLOW_ROUNDS, SLOW_S, STOPPED_S = 10.0, 4, 10.0, 2.0
QUERY_ROWS = 2  # of a call


def programs(build):
    import rolling_restart_e2e as rolling

    rolling.PROGRAMS.ckvd, rolling.PROGRAMS.ckvctl, rolling.PROGRAMS.attend_caller, rolling.PROGRAMS.c_caller = (
        build / "bin" / name for name in ("ckvd", "ckvctl", "attend_caller", "c_caller"))
    return rolling


def kills(rolling):
    """{"events", "queries", "failed", "changed", and the longest call beside each kind in ms}"""
    rounds = -(-KILLS // (len(rolling.KINDS) * HOLDERS))
    with tempfile.TemporaryDirectory(prefix="ckv-kills-") as name:
        said, events, _ = rolling.play(pathlib.Path(name), rounds, calm_s=2.0, holders=HOLDERS)
    counts, errors = rolling.count_calls(said)
    for error in errors:
        print(f"fleet_faults: {error}", file=sys.stderr)
    longest = rolling.longest(said, events)
    return {**counts, "events": len(events), **{f"{kind}_ms": 1e3 * seconds for kind, seconds in longest.items()}}


def rows_of(fleet):
    """Query rows that the holders took, all together."""
    rows = 0
    for index in fleet.holders:
        log = (fleet.fleet.folder / f"h{index}.log").read_text()
        address = re.search(r"metrics at http://(\S+)/metrics", log).group(1)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as page:
            rows += float(re.search(r"^ckv_holder_query_rows_total (\S+)$", page.read().decode(), re.M).group(1))
    return rows


def slow(rolling):
    """{"calm_ms", "slow_ms": the largest 0.99 quantile of a caller, "ratio", "extra_percent", "failed", "changed"}"""
    with tempfile.TemporaryDirectory(prefix="ckv-slow-") as name:
        folder = pathlib.Path(name)
        fleet = rolling.RollingFleet(folder, HOLDERS, ("--metrics-address=127.0.0.1:0",))
        callers = []
        try:
            rolling.load(fleet, folder)
            rolling.start_callers(fleet, callers, each=1)
            rolling.let_call(callers, CALM_S)
            calm = [callers.pop().end() for _ in list(callers)]
            before = rows_of(fleet)
            rolling.start_callers(fleet, callers, each=1)
            rolling.let_call(callers, SLOW_S - STOPPED_S)
            for _ in range(SLOW_ROUNDS):
                fleet.holders[0].send_signal(signal.SIGSTOP)
                rolling.let_call(callers, STOPPED_S)
                fleet.holders[0].send_signal(signal.SIGCONT)
                rolling.let_call(callers, SLOW_S - STOPPED_S)
            said = [callers.pop().end() for _ in list(callers)]
            rows = rows_of(fleet) - before
        finally:
            for caller in callers:
                caller.kill()
            fleet.stop()
    counts, errors = rolling.count_calls(said)
    for error in errors:
        print(f"fleet_faults: {error}", file=sys.stderr)
    calm_ms, slow_ms = (max(one["ms"][1] for one in those) for those in (calm, said))
    return {**counts, "calm_ms": calm_ms, "slow_ms": slow_ms, "ratio": slow_ms / calm_ms,
            "longest_ms": max(one["ms"][3] for one in said),
            "extra_percent": 100 * (rows / (QUERY_ROWS * counts["queries"]) - 1)}


@usual_priority()
def figures(build):
    """{"kills": as kills, "slow": as slow}"""
    rolling = programs(build.resolve())
    return {"slow": slow(rolling), "kills": kills(rolling)}


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
