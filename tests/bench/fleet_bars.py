"""The bars of the set "fleet": faults of holders that have replicas, of directories on etcd, and the sizes of these."""

import copies
import directory_sizes
import fleet_faults
import lan_faults
import simulated
from bar import Bar, counter

FAULTS, LAN, SIZES, COPIES, SIMULATED = "fleet_faults", "lan_faults", "directory_sizes", "copies", "simulated"
SCRIPTS = {FAULTS: fleet_faults.figures, LAN: lan_faults.figures, SIZES: directory_sizes.figures,
           COPIES: copies.figures, SIMULATED: simulated.figures}


def on_lan(measure, scene, figure, unit, base="queries", base_unit="calls", **limit):
    """A bar over a figure of a fleet on eight hosts (lan_faults.py)."""
    return Bar(measure, LAN, counter(scene, figure), unit, base=counter(scene, base), base_unit=base_unit, **limit)


def without_effect(scene, refuses=False):
    """Nothing fails or is lost, and nothing is refused, unless `refuses`: a change may need a holder that restarts."""
    rows = [on_lan(f"{scene}: {what}", scene, figure, unit, at_most=0, **base) for what, figure, unit, base in (
        ("calls that failed", "failed", "calls", {}),
        ("answers with other bits than the first", "changed", "calls", {}),
        ("changes refused", "refused", "changes", {"base": "acknowledged", "base_unit": "acknowledged"}),
        ("acknowledged changes lost", "lost", "changes", {"base": "acknowledged", "base_unit": "acknowledged"}))]
    return [row for row in rows if not (refuses and "refused" in row.measure)]


def copied(scene, measure):
    """The bars of a drain or a repair (copies.py)."""
    calls = {"base": counter(scene, "queries"), "base_unit": "calls"}
    return [
        Bar(f"{measure}: time", COPIES, counter(scene, "of_rate"), "x that of the set rate", at_most=1.2,
            base=counter(scene, "s"), base_unit="s"),
        Bar("the same, calls that failed, or with other bits", COPIES,
            lambda run: counter(scene, "failed")(run) + counter(scene, "changed")(run), "calls", at_most=0, **calls),
        Bar("the same, the 0.99 quantile of calls", COPIES, counter(scene, "p99_ratio"), "x undisturbed", at_most=1.2,
            base=counter(scene, "p99_ms"), base_unit="ms"),
    ]


BARS = [
    Bar("simulated fleets: seeds that fail", SIMULATED, counter("seeds", "failed"), "seeds", at_most=0,
        base=counter("seeds", "seeds"), base_unit="seeds"),
    Bar("the same, faults of a seed", SIMULATED, counter("seeds", "faults"), "faults", at_least=200),
    Bar("the same, time of fleets over time", SIMULATED, counter("seeds", "speed"), "x", at_least=60,
        base=counter("seeds", "s"), base_unit="s"),
    Bar(f"planted bugs that {simulated.PLANT_SEEDS} seeds find", SIMULATED, counter("plants", "found"), "bugs",
        at_least=len(simulated.PLANTS), base=counter("plants", "planted"), base_unit="planted"),
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
    on_lan("rolling: calls beside restarts of all holders, directories and members of etcd", "rolling", "queries", "calls",
           base="restarts", base_unit="restarts", at_least=lan_faults.CALLS),
    *without_effect("rolling", refuses=True),
    on_lan(f"leader: {lan_faults.LEADER_KILLS} kills, the longest time until another led", "leader", "lead_s", "s", at_most=3),
    *without_effect("leader"),
    *without_effect("member"),
    on_lan("majority: from its loss until a call is refused", "majority", "refused_s", "s", at_least=3.5),
    on_lan("the same, errors that name the lease", "majority", "names_reason", "errors of 1", at_least=1),
    on_lan("the same, from the last election in etcd until a call is answered", "majority", "right_s", "s", at_most=1),
    on_lan("campaign: answers that are wrong", "campaign", "changed", "calls", at_most=0),
    on_lan("the same, acknowledged changes lost", "campaign", "lost", "changes", base="acknowledged", base_unit="acknowledged", at_most=0),
    on_lan("the same, crashes", "campaign", "crashes", "programs", base="faults", base_unit="faults", at_most=0),
    on_lan("the same, the longest call", "campaign", "longest_ms", "ms", at_most=6000),
    on_lan("the same, from the last fault until all is right", "campaign", "right_s", "s"),
    Bar("1,000 members, 1,000,000 chunks of 10,000 corpora: in etcd", SIZES, counter("sizes", "etcd_mib"), "MiB", at_most=64,
        base=counter("sizes", "file_mib"), base_unit="MiB of its file"),
    Bar(f"the same, {directory_sizes.KILLS} kills, the longest time until another leads with all of it", SIZES,
        counter("sizes", "lead_s"), "s", at_most=3),
    Bar("the same, memory of a requester for a chunk that it uses", SIZES, counter("sizes", "requester_bytes"), "B", at_most=64),
    Bar("a change of one corpus, reported to a watcher", "directory_bench", counter("BM_ReportedChange", "bytes"), "B", at_most=4096),
    *copied("drain", "a holder with 4 GiB is drained"),
    *copied("repair", "a holder with 4 GiB is lost, and another one copies all"),
]
