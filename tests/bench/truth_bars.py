"""The bars of the set "truth": rankings and plans, beside their papers and a real fleet."""

import model_links
import paper_figures
import planned
import simulated_fleet
from bar import Bar, counter

PAPERS, PLANNED, MODELS, FLEET = "paper_figures", "planned", "model_links", "simulated_fleet"
SCRIPTS = {PAPERS: paper_figures.figures, PLANNED: planned.figures, MODELS: model_links.figures, FLEET: simulated_fleet.figures}
LINKS = ("shm", "tcp", *model_links.LINKS)

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
    # M_q 16, 128, 512, 1,024 and 4,096 over 256, 2,048 and 8,192 tokens. V3 also with the constants of V2-Lite.
    *(bar for model in (*model_links.MODELS, model_links.BORROWED) for link in LINKS for bar in (
        *(Bar(f"model against measured route, {model}, {link}, {what}", MODELS, counter(f"{model}, {link}", figure),
              "% MAPE", at_most=most)
          for what, figure, most in (("M_q >= 512", "mape_large", 7), ("all M_q", "mape", 12),
                                     ("M_q >= 512, beyond the kernel", "beyond_large", 7),
                                     ("all M_q, beyond the kernel", "beyond", 12))),
        Bar(f"regret of the predicate, {model}, {link}", MODELS, counter(f"{model}, {link}", "regret"), "%", at_most=3),
        Bar(f"right choice outside a 10 % tie, {model}, {link}, beyond the noise", MODELS,
            counter(f"{model}, {link}", "resolved_right"), "%", at_least=97,
            base=counter(f"{model}, {link}", "resolved_points"), base_unit="points"))),
    # By the mean time of a request, at nine loads from 50 to 250 %. deploy/handbook/plan.md has why the lowest load misses it.
    Bar(f"simulated fleet of {simulated_fleet.NODES} nodes: auto beside the best other policy", FLEET,
        counter("fleet", "worst_ratio"), "x at most", at_most=1.02),
    Bar("the same, loads at which auto is 10 % better", FLEET, counter("fleet", "better"), "loads", at_least=3,
        base=counter("fleet", "loads"), base_unit="loads"),
    Bar(f"simulated fleet of {simulated_fleet.LARGE_NODES} nodes, three policies at one load", FLEET, counter("large", "s"), "s",
        at_most=600, base=counter("large", "worst_ratio"), base_unit="x"),
    # Agents on a fleet of two holders beside a plan of it. The quantile 0.99 is for reading: it is the scheduler's.
    *(Bar(f"routes beside a plan of them, {load} load, {quantile}", PLANNED, counter(load, quantile), "x predicted",
          base=counter(load, "utilisation"), base_unit="of a kernel", at_most=1.5 if quantile == "p50" else None)
      for load in ("low", "high") for quantile in ("p50", "p99")),
]
