"""The bars of the set "models": models as they are served."""

from bar import Bar, counter

SELECT = "BM_SelectTenMillion"

BARS = [
    Bar("scores of index keys, one thread, 1 token", "score_bench", counter("BM_Score/tokens:1", "of_read"), "of reading the keys",
        at_least=0.85, base=counter("BM_Score/tokens:1", "Mkeys/s"), base_unit="million keys/s"),
    Bar("the same, 4 tokens", "score_bench", counter("BM_Score/tokens:4", "of_read"), "of reading the keys",
        base=counter("BM_Score/tokens:4", "Mkeys/s"), base_unit="million keys/s"),
    Bar("2,048 of 10,000,000 rows at 16 holders, rows that are not those of float64", "select_bench",
        counter(SELECT, "wrong_rows"), "rows", at_most=0),
    Bar("the same with weights whose scores are rounded", "select_bench", counter(SELECT, "rounded_wrong_rows"), "rows"),
    Bar("the same, time", "select_bench", counter(SELECT, "over_slowest"), "x the slowest holder's scoring", at_most=1.3,
        base=counter(SELECT, "ms"), base_unit="ms"),
    Bar("the same, bytes between requester and holder", "select_bench", counter(SELECT, "KiB_per_holder"), "KiB a holder",
        at_most=12),
    Bar("the same as a choice", "select_bench", counter(SELECT, "choice_KiB_per_holder"), "KiB a holder"),
    Bar("queries of an attend of the choice", "select_bench", counter(SELECT, "attend_by_choice_KiB"), "KiB",
        base=counter(SELECT, "attend_by_rows_KiB"), base_unit="KiB with its rows"),
]
