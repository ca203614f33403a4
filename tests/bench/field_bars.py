"""The bars of the set "field": problems that users of similar systems reported, tried on ckv.

Scripts of tests/bench/field produce the figures: `figures(build)` returns {name: {figure: value}}.
"""

import pathlib
import sys

from bar import Bar, counter

sys.path.append(str(pathlib.Path(__file__).with_name("field")))
import clean_root  # noqa: E402
import clock_steps  # noqa: E402
import health_matrix  # noqa: E402
import loaded_costs  # noqa: E402
import name_moves  # noqa: E402
import probe  # noqa: E402
import quickstart  # noqa: E402
import rolling_restart  # noqa: E402

# Name of a script -> its figures(build). bars.py runs each once.
NAMES, ROLLING = "name_moves", "rolling_restart"
SCRIPTS = {"clean_root": clean_root.figures, "health_matrix": health_matrix.figures, "clock_steps": clock_steps.figures, "loaded_costs": loaded_costs.figures,
           "probe": probe.figures, "quickstart": quickstart.figures, NAMES: name_moves.figures,
           ROLLING: rolling_restart.figures}

BARS = [
    Bar("clean root, then the two commands: which of them fail", "clean_root", counter("commands", "bad_exits"), "commands",
        at_most=0, base=counter("commands", "quickstart_s"), base_unit="s for the first"),
    Bar("the same, tests that fail", "clean_root", counter("commands", "failed"), "tests", at_most=0,
        base=counter("commands", "passed"), base_unit="passed"),
    Bar("the same, skipped tests without a remedy", "clean_root", counter("commands", "unnamed"), "tests", at_most=0,
        base=counter("commands", "skipped"), base_unit="skipped"),
    # On two idle processors, a command takes at best half of its processor time.
    Bar("quick start from bare, two cores, packages fetched (half its processor time)", "quickstart",
        counter("quickstart", "wall_s"), "s", at_most=300, base=counter("quickstart", "processor_s")),
    Bar("the same, its build", "quickstart", counter("quickstart", "build_s"), "s"),
    Bar("the same, time that no phase tells", "quickstart", counter("quickstart", "untold_s"), "s", at_most=5),
    Bar("health matrix: faults tried", "health_matrix", counter("matrix", "faults"), "faults", at_least=20,
        base=counter("matrix", "cells"), base_unit="cells"),
    Bar("health matrix: reporters that say all is well beside a fault", "health_matrix", counter("matrix", "lies"), "cells",
        at_most=0),
    Bar("health matrix: faults that health does not name by their code", "health_matrix", counter("matrix", "unnamed"), "faults",
        at_most=0),
    Bar(f"a fleet that is well for {health_matrix.HEALTHY_S} s: reports that something is wrong", "health_matrix",
        counter("matrix", "alarms"), "reports", at_most=0, base=counter("matrix", "asked"), base_unit="asked"),
    Bar("clock steps under load: leases lost", "clock_steps", counter("steps", "lost"), "cases", at_most=0,
        base=counter("steps", "steps"), base_unit="steps"),
    Bar("clock steps under load: calls failed", "clock_steps", counter("steps", "failed"), "cases", at_most=0,
        base=counter("steps", "calls"), base_unit="calls"),
    Bar("clock steps under load: renewals that did not come", "clock_steps", counter("steps", "unrenewed"), "cases", at_most=0),
    Bar("clock steps under load: waits by the wall clock", "clock_steps", counter("steps", "wall_waits"), "cases", at_most=0),
    *(Bar(f"{path} beside 500 connections that do nothing", "probe", counter("beside", path), "ms", at_most=100,
          base=counter("alone", path)) for path in probe.PATHS),
    Bar("the directory's name moves to another address: a new corpus is loaded and asked after", NAMES,
        counter("name_moves", "leases"), "leases", at_most=2, base=counter("name_moves", "seconds"), base_unit="s"),
    Bar("rolling restart (TERM, KILL, STOP) of each holder, two copies, 4 callers over gRPC and C: calls made", ROLLING,
        counter("calls", "queries"), "calls", at_least=rolling_restart.CALLS),
    Bar("rolling restart: calls that failed", ROLLING, counter("calls", "failed"), "calls", at_most=0),
    Bar("rolling restart: answers with other bits than the first", ROLLING, counter("calls", "changed"), "calls", at_most=0),
    Bar("rolling restart: the longest call beside SIGKILL", ROLLING, counter("longest_ms", "KILL"), "ms", at_most=500),
    Bar("rolling restart: the longest call beside SIGTERM", ROLLING, counter("longest_ms", "TERM"), "ms", at_most=100),
    Bar("rolling restart: the longest call beside SIGSTOP of 0.5 s", ROLLING, counter("longest_ms", "STOP"), "ms"),
    Bar("rolling restart: the longest call beside SIGSTOP of 4.5 s, with a timeout of 4 s", ROLLING,
        counter("longest_ms", "long STOP"), "ms"),
    Bar("rolling restart: the longest call beside nothing", ROLLING, counter("longest_ms", "none"), "ms"),
    Bar("rolling restart: 0.999 of a caller's calls took at most", ROLLING, counter("longest_ms", "p999"), "ms"),
    Bar("fresh requester beside 12 busy loops, then idle: rounds after 100 calls", "loaded_costs", counter("heal", "after"),
        "x an idle requester's", at_most=1.5, base=counter("heal", "under_load"), base_unit="x under load"),
    Bar("the same, against a requester that has only measured", "loaded_costs", counter("heal", "fresh"), "x its rounds"),
    Bar("150 attends of chunks with two replicas: the holder with the fewest rows", "loaded_costs",
        counter("share", "least_of_mean"), "of the mean", at_least=0.5),
    *(Bar(f"agents compare, policy {policy}: calls against their prediction", "loaded_costs", counter("predict", policy),
          "% off", at_most=25) for policy in ("route", "cache")),
]
