"""The bars of the set "truth": rankings and plans, beside their papers and a real fleet."""

import paper_figures
import planned
from bar import Bar, counter

PAPERS, PLANNED = "paper_figures", "planned"
SCRIPTS = {PAPERS: paper_figures.figures, PLANNED: planned.figures}

BARS = [
    # Processor time, as for decisions.
    *(Bar(f"ranking of 64 requesters, a prompt of 64 chunks, {name}", "rank_bench",
          counter(f"BM_Rank/candidates:64/prefix:{prefix}", "cpu_time"), "ns", at_most=10_000,
          base=counter(f"BM_Rank/candidates:1/prefix:{prefix}", "cpu_time"))
      for name, prefix in (("any chunk counts", 0), ("prefixes count", 1))),
    Bar("plan prfaas: time", PAPERS, counter("prfaas", "s"), "s", at_most=1),
    Bar("the same, the paper's figures that follow from its numbers", PAPERS, counter("prfaas", "off"), "% off", at_most=3,
        base=counter("prfaas", "reproduced"), base_unit="figures"),
    # RAG at 100 % load. The network's free numbers were chosen by two of the paper's tables: netkv_run.h.
    *(Bar(f"simulated NetKV ahead of {name} in mean TTFT", PAPERS, counter("netkv", figure), "seeds",
          at_least=paper_figures.SEEDS)
      for name, figure in (("round robin", "ahead_of_RR"), ("cache and load, tuned", "ahead_of_CLA"))),
    Bar("the same, the ablation's steps: none is worse than the one before", PAPERS, counter("netkv", "worst_step"),
        "x the step before", at_most=1),
    Bar("the same, figures of tables II and IV that differ by more than 15 % without a reason", PAPERS,
        counter("netkv", "without_reason"), "figures", at_most=0, base=counter("netkv", "figures"), base_unit="figures"),
    Bar("the same, 12,000 requests at 64 GPUs", PAPERS, counter("netkv", "run_s"), "s", at_most=30),
    # Agents on a fleet of two holders beside a plan of it. The quantile 0.99 is for reading: it is the scheduler's.
    *(Bar(f"routes beside a plan of them, {load} load, {quantile}", PLANNED, counter(load, quantile), "x predicted",
          base=counter(load, "utilisation"), base_unit="of a kernel", at_most=1.5 if quantile == "p50" else None)
      for load in ("low", "high") for quantile in ("p50", "p99")),
]
