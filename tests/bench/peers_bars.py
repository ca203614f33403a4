"""The rows of the set `peers`: transfers beside NIXL and Mooncake, kernels beside vLLM's."""

import peer_doors
import peer_kernels
import peer_rest
import peer_transfers
from bar import Bar, counter

TRANSFERS, KERNELS, DOORS, REST = "peer_transfers", "peer_kernels", "peer_doors", "peer_rest"
SCRIPTS = {TRANSFERS: peer_transfers.figures, KERNELS: peer_kernels.figures, DOORS: peer_doors.figures,
           REST: peer_rest.figures}


def transfer(measure, case, unit, limit):
    return Bar(measure, TRANSFERS, counter(case, "ratio"), unit, at_most=limit, base=counter(case, "peer_median_us"), base_unit="us")


def settings(group, names):
    """What each of a peer's settings takes, for reading."""
    return [Bar(f"{group}, {name}, {case}", TRANSFERS, counter(f"{group}, {name}, {case}", "median_us"), "us",
                base=counter(f"{group}, {name}, {case}", "best_us"), base_unit="us best")
            for name in names for case in peer_transfers.CASES
            if not (group.startswith("Mooncake") and peer_transfers.CASES[case][2])]


BARS = [
    *(transfer(f"fetch on one host, {case}, from C", f"shm {case}", "x NIXL's best settings", limit)
      for case, limit in (("18 KB", 1.2), ("9.4 MB", 1.0), ("64 MB", 1.0))),
    # The bytes of a private chunk pass through memory that both processes map (ADR 0055), so this is the bound.
    *(transfer(f"fetch on one host, {case}, from C", f"two copies {case}", "x two copies that are all", 1.15)
      for case in ("9.4 MB", "64 MB")),
    transfer("fetch on one host, 9.4 MB, from C", "memcpy 9.4 MB", "x memcpy", None),
    transfer("fetch on one host into 512 scattered blocks of 18 KB", "shm 512 blocks", "x NIXL's best settings", 0.5),
    *(transfer(f"fetch over tcp, {case}, from C", f"tcp {case}", "x the best peer", limit)
      for case, limit in (("18 KB", 0.9), ("9.4 MB", 0.7), ("64 MB", 0.7))),
    *(Bar(f"route of {rows} over 16 tokens, {door}", DOORS, counter(rows, f"{door.lower()}_added_us"), "us over C++", at_most=3,
          base=counter(rows, "cc_us"), base_unit="us") for rows in ("1 row", "16 rows") for door in ("C", "Python")),
    *(Bar(f"first {call} after {peer_rest.REST_S:.0f} s at rest, {fabric}", REST, counter(f"{fabric} {call}", "ratio"),
          "x after 1 s", at_most=2, base=counter(f"{fabric} {call}", "short_us"), base_unit="us")
      for fabric in peer_rest.FABRICS for call in peer_rest.CALLS),
    Bar("the same of two processes that share a socket", REST, counter("floor", "ratio"), "x after 1 s",
        base=counter("floor", "short_us"), base_unit="us"),
    Bar("what the rest costs ckv's call, the worst of four, beside theirs", REST, counter("worst", "of_floor"), "x theirs"),
    Bar("processor time of a daemon at rest, the worst of six", REST, counter("idle", "percent"), "% of a core", at_most=0.5),
    *settings("ckv", ("shm", "tcp")),
    *settings("NIXL on this host", peer_transfers.NIXL),
    *settings("NIXL over tcp", peer_transfers.NIXL),
    *settings("Mooncake over tcp", peer_transfers.SLICES),
    *(Bar(f"like for like with vLLM's kernel, {case}, fast", KERNELS, counter(f"{case}, fast", "ratio"), "x", at_least=4,
          base=counter(f"{case}, fast", "vllm_us"), base_unit="us") for case in ("1 x 2048", "8 x 2048", "1 x 16384", "8 x 16384")),
    *(Bar(f"like for like with vLLM's kernel, {case}, wire", KERNELS, counter(f"{case}, wire", "ratio"), "x",
          base=counter(f"{case}, wire", "vllm_us"), base_unit="us") for case in ("1 x 2048", "8 x 2048", "1 x 16384", "8 x 16384")),
]
