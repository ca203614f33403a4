"""The bars of the set "fleet": faults of holders that have replicas."""

import fleet_faults
from bar import Bar, counter

FAULTS = "fleet_faults"
SCRIPTS = {FAULTS: fleet_faults.figures}

BARS = [
    Bar("a replica stops 2 s in 10: the 0.99 quantile of calls", FAULTS, counter("slow", "ratio"), "x undisturbed", at_most=3,
        base=counter("slow", "calm_ms"), base_unit="ms"),
    Bar("the same, the longest call", FAULTS, counter("slow", "longest_ms"), "ms"),
    Bar("the same, query rows that holders took beyond one of each call", FAULTS, counter("slow", "extra_percent"), "%", at_most=5),
    Bar("the same, calls that failed, or with other bits", FAULTS, lambda figures: figures["slow"]["failed"] + figures["slow"]["changed"],
        "calls", at_most=0, base=counter("slow", "queries"), base_unit="calls"),
    Bar("TERM, KILL and STOP of one of two holders in turn: times", FAULTS, counter("kills", "events"), "times", at_least=fleet_faults.KILLS,
        base=counter("kills", "queries"), base_unit="calls"),
    Bar("the same, calls that failed", FAULTS, counter("kills", "failed"), "calls", at_most=0),
    Bar("the same, answers with other bits than the first", FAULTS, counter("kills", "changed"), "calls", at_most=0),
    *(Bar(f"the same, the longest call beside {kind}", FAULTS, counter("kills", f"{kind}_ms"), "ms", at_most=limit)
      for kind, limit in (("KILL", 500), ("TERM", 100), ("STOP", 1000))),
    Bar("the same, the longest call beside nothing", FAULTS, counter("kills", "none_ms"), "ms"),
]
