"""The long form of tests/e2e/rolling_restart_e2e.py: at least 100,000 calls beside TERM, KILL and STOP of each holder."""

import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from priority import usual_priority  # noqa: E402

CALLS, ROUNDS = 100_000, 3
CALM_S = 5.0
SLOW_S = 0.02  # kSlowS of call_times.h


@usual_priority()
def figures(build):
    """{"calls": counts, "longest_ms": longest call during each kind of event, and during none}. Continues until there
    were CALLS calls, however slow the machine is."""
    import rolling_restart_e2e as rolling

    rolling.PROGRAMS.ckvd, rolling.PROGRAMS.ckvctl, rolling.PROGRAMS.attend_caller, rolling.PROGRAMS.c_caller = (
        build / "bin" / name for name in ("ckvd", "ckvctl", "attend_caller", "c_caller"))
    total = {"queries": 0, "failed": 0, "changed": 0, "events": 0}
    # Callers record calls of SLOW_S and more. Without a record, the longest call during an event took at most SLOW_S.
    longest, p999_ms = dict.fromkeys((*rolling.KINDS, rolling.LONG_STOP, "none"), SLOW_S), 0.0
    while total["queries"] < CALLS:
        with tempfile.TemporaryDirectory(prefix="ckv-rolling-restart-") as name:
            said, events, _ = rolling.play(pathlib.Path(name), ROUNDS, CALLS - total["queries"], CALM_S)
        counts, errors = rolling.count_calls(said)
        for error in errors:
            print(f"rolling_restart: {error}", file=sys.stderr)
        for count, value in counts.items():
            total[count] += value
        total["events"] += len(events)
        for kind, seconds in rolling.longest(said, events).items():
            longest[kind] = max(longest[kind], seconds)
        p999_ms = max(p999_ms, *(caller["ms"][2] for caller in said))
    print(f"rolling_restart: {total}, longest {longest}, p99.9 {p999_ms:.1f} ms", file=sys.stderr)
    return {"calls": total, "longest_ms": {**{kind: 1e3 * seconds for kind, seconds in longest.items()},
                                           "p999": p999_ms}}
