"""The bars of each set of benchmarks (bars.py runs them), and what each row reads.

Add a new row to its set in SETS. Its figures are produced by a binary of tests/bench or by a script in this folder.
"""

import bindings_figures
import decision_links
import directory_kills
import field_bars
import fleet_bars
import llama_figures
import models_bars
import peers_bars
import policy_links
import truth_bars
import unit_figures
import vllm_bars
import wait_fleets
import web_figures
from bar import NOT_HERE, Bar, NotHere, counter


def ratio(measure, benchmark, at_least, unit):
    """A bar over a ratio that attention_bench measures sample by sample against its floor."""
    return Bar(measure, "attention_bench", counter(benchmark, "ratio"), unit, at_least=at_least)


EXACT, WIRE, FAST = 1, 2, 3  # attention/precision.h
PRECISIONS = {EXACT: "exact", WIRE: "wire", FAST: "fast"}


def on_amx(measure, benchmark, precision, at_least, unit, binary="matrix_bench"):
    """A bar over a ratio of the kernel on the AMX tile unit, at one precision."""
    measure, benchmark = f"{measure}, {PRECISIONS[precision]}", f"{benchmark}/precision:{precision}"
    return Bar(measure, binary, counter(benchmark, "ratio"), unit, at_least=at_least)


def on_dot(measure, benchmark, precision, at_least, unit):
    """The same on VDPBF16PS."""
    return on_amx(f"VDPBF16PS, {measure}", benchmark, precision, at_least, unit, "dot_bench")


def data_path(measure, benchmark, value, unit, base=None, base_unit=None, **limit):
    """A bar over a counter of data_path_bench, with its floor from the same run as the base."""
    return Bar(measure, "data_path_bench", counter(benchmark, value), unit,
               base=counter(benchmark, base) if base else None, base_unit=base_unit, **limit)


def on_link(measure, link, figure, unit, base=None, base_unit=None, **limit):
    """A bar over a result of characterizing one holder over a link (decision_links.py)."""
    return Bar(measure, LINKS, counter(link, figure), unit,
               base=counter(link, base) if base else None, base_unit=base_unit, **limit)


def selection(chunks, touched, holders=1):
    return f"BM_Selection/chunks:{chunks}/touched:{touched}/holders:{holders}"


def over_prices(benchmark, name, worst=max):
    """The worst (or the best) of a counter over the prices of a prefetch."""
    return lambda run: worst(run[f"{benchmark}/k:{price}"][name] for price in PRICES)


PRICES = (2, 6, 20, 60, 200, 350, 700, 2000, 6000)
ROWS = (1, 16, 256)
# Not binaries: the functions in SCRIPTS return these figures.
LINKS, AGENTS, WAITS, KILLS = "decision_links", "policy_links", "wait_fleets", "directory_kills"
UNITS, WEB, LLAMA, BINDINGS = "unit_figures", "web_figures", "llama_figures", "bindings_figures"
SCRIPTS = {LINKS: decision_links.figures, AGENTS: policy_links.figures, WAITS: wait_fleets.figures,
           KILLS: directory_kills.figures, UNITS: unit_figures.figures, WEB: web_figures.figures, LLAMA: llama_figures.figures,
           BINDINGS: bindings_figures.figures, **field_bars.SCRIPTS, **vllm_bars.SCRIPTS, **peers_bars.SCRIPTS,
           **fleet_bars.SCRIPTS, **truth_bars.SCRIPTS}
SPLICES = (("bf16, in its place", "BM_Splice/fp8:0/delta:0"), ("bf16, rotated", "BM_Splice/fp8:0/delta:4096"),
           ("fp8, rotated", "BM_Splice/fp8:1/delta:4096"))
FABRIC_NUMBERS = (("shm", 2), ("tcp", 3))


def rows_of(count):
    return f"{count} row" if count == 1 else f"{count} rows"


SETS = {
    # The kernel's own time is measured in the same run: each routed call is paired with a call of the kernel alone.
    # spin_us is the daemons' default. These calls repeat without a pause, so both sides spin for them.
    "data-path": [
        Bar("routed decode adds over the kernel, shm, 16 rows", "requester_bench",
            counter("BM_RoutedDecode/rows:16/spin_us:50", "added_us"), "us", at_most=60,
            base=counter("BM_RoutedDecode/rows:16/spin_us:50", "kernel_us")),
        *(bar for rows in ROWS for bar in (
            data_path(f"route beside its kernel, shm, {rows_of(rows)}", f"BM_Route/shm/rows:{rows}",
                      "over_us", "us over the floor", at_most=3, base="floor_us", base_unit="us"),
            data_path(f"route beside its kernel, shm, {rows_of(rows)}, p99", f"BM_Route/shm/rows:{rows}",
                      "over_p99_us", "us over the floor", at_most=25, base="floor_p99_us", base_unit="us"))),
        *(data_path(f"route beside its kernel, tcp, {rows_of(rows)}", f"BM_Route/tcp/rows:{rows}",
                    "ratio", "x raw TCP", at_most=1.25, base="floor_us", base_unit="us") for rows in ROWS),
        *(data_path(f"the same through the client library, {fabric}, {rows_of(rows)}",
                    f"BM_RouteClient/{fabric}/rows:{rows}", "net_us", "us", base="floor_us")
          for fabric in ("shm", "tcp") for rows in ROWS),
        *(data_path(f"8 requesters of one chunk, {rows_of(rows)} each", f"BM_EightRequesters/rows:{rows}",
                    "throughput_ratio", "x one alone", at_least=bar, base="one_rate", base_unit="/s")
          for rows, bar in ((1, 4), (16, 1.3))),
        data_path("8 requesters of one chunk, 1 row each, p50", "BM_EightRequesters/rows:1",
                  "p50_ratio", "x one alone", at_most=3, base="one_p50_us", base_unit="us"),
        *(data_path(f"fetch of one {what}, {fabric}", f"BM_Fetch{fabric.capitalize()}/layers:{layers}", "ratio",
                    unit, at_least=bar, base="floor_GBps", base_unit="GB/s")
          for fabric, unit, bar in (("shm", "of memcpy", 0.85), ("tcp", "of raw TCP in such pieces, checked", 0.9))
          for what, layers in (("layer", 1), ("chunk", 27))),
        *(data_path(f"the same of one {what}, tcp, beside TCP that only moves bytes", f"BM_FetchTcp/layers:{layers}",
                    "of_bare", "of it", base="sendfile_GBps", base_unit="GB/s")
          for what, layers in (("layer", 1), ("chunk", 27))),
        data_path("a chunk mapped, and its first row attended", "BM_MapChunk", "mapped_us", "us",
                  base="floor_us", base_unit="us", at_most=100),
        data_path("goodput at twice what it can serve", "BM_Overload", "goodput_ratio", "of its peak",
                  at_least=0.9, base="peak_rate", base_unit="/s"),
        data_path("p99 of what it admits then", "BM_Overload", "p99_ratio", "x that at 80 % load",
                  at_most=2, base="p99_at_80_us", base_unit="us"),
        *(data_path(f"Attend over gRPC beside its kernel, {rows_of(rows)}", f"BM_GrpcAttend/rows:{rows}", "ratio",
                    "x an empty call", at_most=1.3, base="empty_us", base_unit="us") for rows in ROWS),
        *(data_path(f"the same against a server that neither waits nor has streams, {rows_of(rows)}",
                    f"BM_GrpcAttend/rows:{rows}", "of_plain", "x an empty call", base="plain_us", base_unit="us")
          for rows in ROWS),
        data_path("idle holder, no session", "BM_Idle/shm/sessions:0", "cpu_percent", "% of a core", at_most=0.5),
        *(data_path(f"idle holder, 2 sessions on {fabric}", f"BM_Idle/{fabric}/sessions:2", "cpu_percent",
                    "% of a core", at_most=0.5) for fabric in ("shm", "tcp")),
    ],
    # Estimating the costs of route, fetch and local, and choosing between them. These bars use processor time, because
    # the work is arithmetic alone. With other work on the machine, wall time was ten times as high.
    "decision": [
        Bar("decision over 8 candidates", "decision_bench", counter("BM_Decide/candidates:8", "cpu_time"), "ns",
            at_most=1000, base=counter("BM_Decide/candidates:1", "cpu_time")),
        # The default target and the best vector target, over uncached rows. Fitted to few points, checked against more.
        *(Bar(f"kernel's curve against its measured times, {target} target", "curve_bench",
              counter(f"BM_Curve/{target}/curve", "error"), "% MAPE", at_most=8,
              base=counter(f"BM_Curve/{target}/without_floor", "error"), base_unit="% without a floor")
          for target in ("default", "vector")),
        # A vector kernel reads rows about as fast as a plain loop; a matrix kernel takes longer for one query row.
        Bar("this host's floor of a token beside a read of its row, default target", "curve_bench",
            counter("BM_Here/default", "of_read"), "x a read", at_least=0.5, base=counter("BM_Here/default", "read_ns"),
            base_unit="ns"),
        Bar("this host's floor of a token beside a read of its row, vector target", "curve_bench",
            counter("BM_Here/vector", "of_read"), "x a read", at_most=2, base=counter("BM_Here/vector", "read_ns"),
            base_unit="ns"),
        # The model's error has a bar on full-speed links only. The regret of its choices has one on every link.
        *(bar for link, large, all_rows in (("shm", 7, 12), ("tcp", 7, 12), ("10gbit", None, None),
                                            ("1gbit", None, None)) for bar in (
            on_link(f"model against measured route, {link}, M_q >= 512", link, "mape_large", "% MAPE",
                    at_most=large),
            on_link(f"model against measured route, {link}, all M_q", link, "mape", "% MAPE", at_most=all_rows),
            on_link(f"regret of the predicate, {link}", link, "regret", "%", at_most=3),
            # First by the means alone, then only at points whose difference is larger than the noise between rounds.
            on_link(f"right choice outside a 10 % tie, {link}, by the means", link, "right", "%",
                    base="clear_points", base_unit="points"),
            on_link(f"right choice outside a 10 % tie, {link}, beyond the noise", link, "resolved_right", "%",
                    at_least=97, base="resolved_points", base_unit="points"),
            # Too few resolved points prove nothing. Below 34 points, 97 % requires every choice to be right.
            on_link(f"points that are beyond the noise, {link}", link, "resolved_points", "points", at_least=10,
                    base="clear_points", base_unit="outside a tie"))),
        on_link("routed bytes below one layer's fetch, M_q 256 over 2048 tokens", "tcp", "bytes_saved", "%",
                at_least=75.5),
        *(Bar(f"splice of 2048 tokens x 27 layers, {what}", "splice_bench", counter(name, "ratio"), "of memcpy",
              at_least=0.7, base=counter(name, "memcpy_GBps"), base_unit="GB/s")
          for what, name in SPLICES),
        *(Bar(f"fetch and splice, {fabric}", "splice_bench", counter(f"BM_FetchInto/fabric:{number}", "over_fetch"),
              "x fetch alone", at_most=1.15, base=counter(f"BM_FetchInto/fabric:{number}", "fetch_us"), base_unit="us")
          for fabric, number in FABRIC_NUMBERS),
        *(Bar(f"slices of 8 heads, {fabric}, 256 tokens, gathered", "splice_bench",
              counter(f"BM_FetchSlice/fabric:{number}/tokens:256", "apart_over_staged"), "x faster than one by one",
              base=counter(f"BM_FetchSlice/fabric:{number}/tokens:256", "staged_transfers"), base_unit="transfers")
          for fabric, number in FABRIC_NUMBERS),
    ],
    # Calls of many sequences. Times of a batch include the holders' kernels; those of a selection are the requester's.
    "contexts": [
        *(Bar(f"64 sequences in one call, {fabric}", "contexts_bench", counter(f"BM_Batch/fabric:{number}", "of_calls"),
              "x 64 calls", at_most=bar, base=counter(f"BM_Batch/fabric:{number}", "calls_us"), base_unit="us")
          for (fabric, number), bar in zip(FABRIC_NUMBERS, (0.75, 0.6))),
        *(Bar(f"64 sequences in one call, {fabric}, its bytes in 4 frames", "contexts_bench",
              counter(f"BM_Batch/fabric:{number}", "of_raw"), "x a raw exchange", at_most=1.3,
              base=counter(f"BM_Batch/fabric:{number}", "raw_us"), base_unit="us") for fabric, number in FABRIC_NUMBERS),
        Bar("2,048 own rows beside a route, tcp", "contexts_bench", counter("BM_OwnRows/fabric:3", "added_percent"),
            "% over the longer", at_most=10, base=counter("BM_OwnRows/fabric:3", "route_us"), base_unit="us"),
        *(Bar(f"selection in 16 chunks of {chunks}", "contexts_bench", counter(selection(chunks, 16), "own_us"), "us",
              at_most=30) for chunks in (16, 100, 10000)),
        *(Bar(f"the same of {chunks}, to one of 16", "contexts_bench",
              lambda run, chunks=chunks: 100 * (run[selection(chunks, 16)]["own_us"] /
                                                run[selection(16, 16)]["own_us"] - 1),
              "% more", at_most=15) for chunks in (100, 10000)),
        Bar("selection in all of 10000 chunks", "contexts_bench", counter(selection(10000, 10000), "own_us"), "us",
            at_most=100),
        *(Bar(f"selection in {touched} chunks of {chunks}, 4 holders", "contexts_bench",
              counter(selection(chunks, touched, 4), "own_us"), "us",
              base=counter(selection(chunks, touched, 4), "merge_us"), base_unit="us of it merging")
          for chunks, touched in ((16, 16), (100, 16), (10000, 16), (10000, 10000))),
        Bar("gRPC stream, 8 in flight, 16 rows x 2048", "contexts_bench", counter("BM_Stream", "ratio"),
            "x tickets of the library", at_most=1.25, base=counter("BM_Stream", "library_us"), base_unit="us an answer"),
    ],
    # The requester decides. First the prefetch rule alone: on a trace of requests (CKV_TRACE), on seeds and against
    # adversaries. This is arithmetic alone, so the figures are the same on every machine. Prices of a prefetch
    # are in routed steps. Then agents on real processes, where no policy except auto is the best one everywhere.
    "act": [
        Bar("trace, at every price of a prefetch", "prefetch_rule_bench", over_prices("BM_Trace", "of_best"),
            "x the best fixed threshold", at_most=1.02),
        Bar("the same", "prefetch_rule_bench", over_prices("BM_Trace", "of_optimum"), "x the offline optimum", at_most=1.35),
        Bar("room for a tenth of the rows, at every price", "prefetch_rule_bench", over_prices("BM_TraceTenth", "of_static"),
            "x the better of route and prefetch at once", at_most=1.02),
        Bar("the same at the best price", "prefetch_rule_bench", over_prices("BM_TraceTenth", "of_static", min),
            "x the better of route and prefetch at once", at_most=0.97),
        Bar("trace whose uses change tenfold half-way", "prefetch_rule_bench", over_prices("BM_TraceChanges", "of_halves"),
            "x the best threshold of each half", at_most=1.15),
        Bar("10,000 seeds whose uses change tenfold half-way", "prefetch_rule_bench", counter("BM_Seeds", "of_halves"),
            "x the best threshold of each half", at_most=1.15),
        Bar("the same, the first 50 uses", "prefetch_rule_bench", counter("BM_Seeds", "of_clairvoyant"),
            "x the clairvoyant", at_most=2.05),
        Bar("10,000 adversaries, the first 50 uses", "prefetch_rule_bench", counter("BM_Adversaries", "of_clairvoyant"),
            "x the clairvoyant", at_most=2.05),
        Bar("the same, 1,000 uses", "prefetch_rule_bench", counter("BM_Adversaries", "of_clairvoyant_later"),
            "x the clairvoyant"),
        Bar("exact hints", "prefetch_rule_bench", over_prices("BM_TraceHints", "of_optimum"), "x the offline optimum",
            at_most=1.05),
        Bar("hints wrong by 10 x", "prefetch_rule_bench", over_prices("BM_TraceHints", "of_plain"), "x no hints",
            at_most=1.10),
        Bar("cached chunk, 16 x 64", "local_rows_bench", counter("BM_CachedChunk/tokens:64", "over_us"), "us over its kernel",
            at_most=3, base=counter("BM_CachedChunk/tokens:64", "kernel_us"), base_unit="us"),
        Bar("cached chunk, 16 x 2048", "local_rows_bench", counter("BM_CachedChunk/tokens:2048", "over_us"), "us over its kernel",
            at_most=3, base=counter("BM_CachedChunk/tokens:2048", "kernel_us"), base_unit="us"),
        Bar("a step of policy auto that routes", "local_rows_bench", counter("BM_AutoStep", "over_us"), "us over policy route",
            at_most=1, base=counter("BM_AutoStep", "route_us"), base_unit="us"),
        *(bar for link in policy_links.LINKS for bar in (
            Bar(f"24 agents of 1 to 400 steps, auto, {link}", AGENTS, counter(link, "of_better"),
                "x the better of route and prefetch at once", at_most=1.05, base=counter(link, "auto_s"), base_unit="s"),
            Bar(f"the same, always routed, {link}", AGENTS, counter(link, "route_s"), "s",
                base=counter(link, "cache_s"), base_unit="s prefetched at once"))),
        Bar("of route and prefetch at once, those that win on a link", AGENTS, counter("mix", "winners"), "policies",
            at_least=2),
        Bar("a quote of a group of chunks", "local_rows_bench", counter("BM_Quote", "real_time"), "ns", at_most=2000),
        Bar("a use opened, counted in 16 parts and closed", "prefetch_rule_bench", counter("BM_Use", "real_time"), "ns"),
    ],
    # Chunks on disk and in memory. Reads are served by the page cache, the fastest disk there is. Writes use the disk
    # of CKV_BENCH_FOLDER, or of /tmp.
    "models": models_bars.BARS,
    "store": [
        Bar("restart with 100,000 chunks, ready", "store_disk_bench", counter("BM_Restart", "ready_s"), "s",
            at_most=10),
        Bar("memory of a cold chunk", "store_disk_bench", counter("BM_Restart", "bytes_per_chunk"), "B", at_most=512),
        Bar("load of 64 MB chunks", "store_disk_bench", counter("BM_Load", "ratio"), "of a plain write and fsync",
            at_least=0.8, base=counter("BM_Load", "plain_GBps"), base_unit="GB/s"),
        Bar("cold read of 64 MB chunks from the device", "store_disk_bench", counter("BM_ColdRead/1", "ratio"), "of pread",
            at_least=0.85, base=counter("BM_ColdRead/1", "plain_GBps"), base_unit="GB/s"),
        Bar("cold read of 64 MB chunks from the page cache", "store_disk_bench", counter("BM_ColdRead/0", "ratio"),
            "of pread", base=counter("BM_ColdRead/0", "plain_GBps"), base_unit="GB/s"),
        # A kernel over 2048 rows takes half a millisecond for 16 query rows: 20 us are 4 % of it.
        *(Bar(f"2048 selected rows in {runs}, kept from the last step", "store_stripe_bench",
              counter(f"BM_SelectedStripes/{run}", "find_us"), "us", at_most=20,
              base=counter(f"BM_SelectedStripes/{run}", "read_us"), base_unit="us from the device")
          for run, runs in ((32, "64 stripes"), (1, "2048 stripes"))),
        Bar("pin and unpin by handle, 100,000 chunks", "store_bench",
            counter("BM_PinByLocator/threads:1", "real_time"), "ns", at_most=150),
        Bar("look-up, pin and unpin, 100,000 chunks", "store_bench", counter("BM_PinById/threads:1", "real_time"), "ns",
            at_most=150),
        Bar("the same on two threads", "store_bench",
            lambda run: run["BM_PinById/threads:2"]["items_per_second"] / run["BM_PinById/threads:1"]["items_per_second"],
            "x one", at_least=1.5),
        Bar("plan of 1,000,000 chunks, 16 holders to 17", "store_plan_bench", counter("BM_PlanMillion", "plan_s"), "s",
            at_most=5),
        Bar("chunks that it moves", "store_plan_bench", counter("BM_PlanMillion", "over_least"), "x the least",
            at_most=1.05),
        Bar("cuts that stay when one character of 1 MB is edited", "store_plan_bench",
            counter("BM_EditedCuts", "kept_percent"), "%", at_least=95),
    ],
    # Real daemons, more than this machine has processors. One directory has 1,000 members, 10,000 corpora and
    # 1,000,000 chunks with two holders each. Another one is killed; its folder is on the disk of CKV_BENCH_FOLDER, or
    # of /tmp.
    "operate": [
        Bar(f"a routed call, {count} holder{'s' * (count > 1)}, 16 query rows x 2048 on each", WAITS,
            counter(f"{count}", "of_sleeping"), "x the same that never spins", at_most=1.10,
            base=counter(f"{count}", "sleeping_us"), base_unit="us") for count in wait_fleets.COUNTS
    ] + [
        Bar("exposure of the units, as systemd rates them", UNITS, counter("exposure", "plain"), "of 10", at_most=1.2),
        Bar("the same with the drop-in for RDMA", UNITS, counter("exposure", "rdma"), "of 10", at_most=1.5),
        Bar("start, watch, reload and stop under systemd", UNITS, counter("units", "steps"), "steps of 7", at_least=7),
        Bar("install, upgrade, refuse, remove and purge", UNITS, counter("packages", "steps"), "steps of 9", at_least=9),
        Bar("memory and disk of a chunk", "directory_bench", counter("BM_Million", "bytes_per_chunk"), "B", at_most=1024,
            base=counter("BM_Million", "memory_per_chunk"), base_unit="B of memory"),
        Bar("restart with 1,000,000 chunks, 1,000 members registered", "directory_bench",
            counter("BM_Million", "restart_s"), "s", at_most=10),
        Bar("a change of one corpus, told to a watcher", "directory_bench", counter("BM_ReportedChange", "bytes"), "B",
            at_most=4096),
        Bar("changes of 32 callers", "directory_bench", counter("BM_Million", "changes_per_s"), "/s",
            base=counter("BM_Million", "changes_per_sync"), base_unit="changes a sync"),
        Bar("a change of one caller", "directory_bench", counter("BM_OneCaller", "change_us"), "us"),
        Bar(f"{directory_kills.KILLS} kills, acknowledged changes lost", KILLS, counter("kills", "lost"), "changes",
            at_most=0, base=counter("kills", "acknowledged"), base_unit="acknowledged"),
        Bar("changes half seen", KILLS, counter("kills", "half_seen"), "changes", at_most=0),
        Bar("errors of changes other than UNAVAILABLE", KILLS, counter("kills", "other_errors"), "errors", at_most=0,
            base=counter("kills", "refused"), base_unit="UNAVAILABLE"),
        Bar("queries that failed meanwhile", KILLS, counter("kills", "failed_queries"), "queries", at_most=0,
            base=counter("kills", "queries"), base_unit="queries"),
        Bar("answers that changed meanwhile", KILLS, counter("kills", "changed_answers"), "answers", at_most=0),
        Bar(f"status page and its data, {web_figures.MEMBERS} members and {web_figures.CORPORA} corpora", WEB,
            counter("page", "bytes"), "B", at_most=100_000, base=counter("page", "json_ms"), base_unit="ms of the data"),
        Bar(f"scrape of a holder with {web_figures.SESSIONS} sessions, median", WEB, counter("scrape", "median_ms"), "ms",
            at_most=5, base=counter("scrape", "bytes"), base_unit="B"),
        Bar(f"the worst of {web_figures.SCRAPES} scrapes", WEB, counter("scrape", "worst_ms"), "ms"),
        Bar("queries of the dashboard and of the alerts that return data", WEB, counter("monitoring", "queries"),
            "queries", at_least=web_figures.QUERIES),
        Bar("alerts that fire once when their fault is made, and clear", WEB, counter("monitoring", "alerts"), "alerts",
            at_least=web_figures.ALERTS),
    ],
    # The APIs that programs bind to. A directory of 100,000 chunks, over gRPC on this host; a tenant with a key.
    "bindings": [
        Bar("from a prompt of 32,768 tokens to its chunks, of 100,000", "prompt_bench",
            counter("BM_ResolvePrompt", "resolve_ms"), "ms", at_most=5,
            base=counter("BM_ResolvePrompt", "covered_tokens"), base_unit="tokens covered"),
        # All that the C ABI adds to the C++ call: it reads the call's structs and writes the report.
        *(Bar(f"C over C++, {sequences} in a call", "c_call_bench", counter(f"BM_TakeCall/segments:{count}", "real_time"), "ns",
              at_most=bar) for count, sequences, bar in ((1, "1 sequence", 200), (8, "8 sequences", None))),
        # 16 heads of a token, one holder, shm, with the answer in the same memory each time.
        Bar("Python over C, submit and wait", BINDINGS, counter("submit", "added_us"), "us", at_most=10,
            base=counter("submit", "c_us")),
        Bar("tests of the doors of C and Python beside the C++ client that fail", BINDINGS, counter("doors", "failed"), "cases", at_most=0,
            base=counter("doors", "count")),
        Bar("put of a chunk of 64 MB from Python", BINDINGS, counter("put", "ratio"), "x the C++ load", at_least=0.8,
            base=counter("put", "load_gb_per_s"), base_unit="GB/s"),
        Bar("extension of a corpus of 1,000 chunks by one, from Python", BINDINGS, counter("extend", "ms"), "ms", at_most=20,
            base=counter("extend", "chunks"), base_unit="chunks"),
        Bar("extensions that touch other chunks", BINDINGS, counter("extend", "others_touched"), "cases", at_most=0),
        Bar("first layer of a fetch by layers, 27 of them", BINDINGS, counter("layers", "ratio"), "x the whole", at_most=0.1,
            base=counter("layers", "whole_ms"), base_unit="ms"),
    ],
    # Stock llama.cpp from npm. One thread of the engine; three holders on this host, by shm; policy route.
    "llama": [
        Bar("cases of stock llama.cpp that fail", LLAMA, counter("cases", "failed"), "cases", at_most=0,
            base=counter("cases", "count"), base_unit="cases"),
        # The tests' model, of 2 layers. With 27 layers of random weights, rounding alone decides between almost equally
        # likely tokens: another kernel target over the same cells also changes them.
        Bar(f"greedy tokens of {llama_figures.AGENTS} agents over {llama_figures.WHOLE} tokens, routed, 2 layers", LLAMA,
            counter("tiny", "equal"), "tokens as local", at_least=llama_figures.AGENTS * llama_figures.GREEDY,
            base=counter("tiny", "worst"), base_unit="worst difference of a logit"),
        Bar(f"the same, {llama_figures.LAYERS} layers", LLAMA, counter("agents", "equal"), "tokens as local",
            base=counter("agents", "worst"), base_unit="worst difference of a logit"),
        Bar("those that rounding alone does not explain", LLAMA, counter("agents", "beyond_noise"), "tokens", at_most=0,
            base=counter("agents", "noise"), base_unit="of a logit by another kernel"),
        Bar("the worst difference of a logit", LLAMA, counter("agents", "worst_of_noise"), "x another kernel's", at_most=2),
        *(Bar(f"attention of a layer over {llama_figures.SHORT} own tokens, {where}", LLAMA,
              counter(f"attention/own/{matrix}", "ratio"), "x the stock kernel", at_least=bar,
              base=counter(f"attention/own/{matrix}", "stock_us"), base_unit="us of the stock kernel")
          for where, matrix, bar in (("vector units", 0, 2), ("matrix units", 1, 4))),
        Bar(f"tokens of a whole model over {llama_figures.SHORT} own tokens", LLAMA, counter("model", "rate"), "/s",
            base=counter("model", "stock_rate"), base_unit="/s of the stock kernel"),
        *(Bar(f"attention of {llama_figures.AGENTS} agents, a layer over {cells} tokens, routed", LLAMA,
              counter(f"attention/{name}", "ratio"), "x local", at_most=1.2, base=counter(f"attention/{name}", "own_us"),
              base_unit="us")
          for name, cells in (("short", llama_figures.SHORT), ("whole", llama_figures.WHOLE))),
        Bar(f"tokens of a whole model, {llama_figures.AGENTS} agents over {llama_figures.WHOLE} tokens, routed", LLAMA,
            counter("agents", "rate_ratio"), "x one process that has all", base=counter("agents", "own_rate"),
            base_unit="/s"),
        Bar(f"memory of {llama_figures.AGENTS} agents over {llama_figures.WHOLE} tokens, routed", LLAMA,
            counter("agents", "memory_ratio"), "x prefixes of their own", at_most=0.2, base=counter("agents", "own_MiB"),
            base_unit="MiB"),
    ],
    "field": field_bars.BARS, "vllm": vllm_bars.BARS, "peers": peers_bars.BARS, "fleet": fleet_bars.BARS,
    "truth": truth_bars.BARS,
    # One thread unless it says two; DeepSeek rows; bf16 unless it says fp8.
    "kernels": [
        *(ratio(f"dense, {q} query rows over {rows}", f"BM_Dense/q:{q}/rows:{rows}", bar, "of FMA peak")
          for q, rows, bar in ((128, 2048, 0.80), (1024, 2048, 0.80), (128, 32768, 0.80),
                               (64, 2048, 0.80), (64, 32768, 0.80), (16, 2048, 0.80), (16, 32768, 0.78))),
        ratio("dense, 1 query row over 32768", "BM_MemoryBound/q:1/dtype:1", 0.80, "of DRAM read"),
        *(ratio(f"against oneDNN, {q} query rows over 2048", f"BM_AgainstOneDnn/q:{q}", bar, "x oneDNN's GEMMs and softmax")
          for q, bar in ((128, 1.10), (64, 1.10), (16, 1.5), (1, 2.0))),
        *(ratio(f"selected 2048 of 131072, {q} query rows", f"BM_Selected/q:{q}/k:2048/rows:131072", bar,
                "x dense at equal k") for q, bar in ((128, 0.90), (16, 0.80))),
        *(ratio(f"selected 512 of 131072, {q} query rows", f"BM_SelectedStore/q:{q}", 0.85,
                "x the same of 2048") for q in (128, 16)),
        *(ratio(f"fp8 rows, {q} query rows over {rows}", f"BM_Fp8/q:{q}/rows:{rows}", 1.0, "x bf16 rows")
          for q, rows in ((128, 2048), (64, 2048), (16, 2048))),
        ratio("fp8 rows, 1 query row over 32768", "BM_Fp8MemoryBound", 1.0, "x bf16 rows"),
        *(ratio(f"two threads, {q} query rows over {rows}", f"BM_TwoThreads/q:{q}/rows:{rows}", bar, "x one")
          for q, rows, bar in ((1, 32768, 1.85), (16, 2048, 1.85), (64, 16384, 1.9), (128, 2048, 1.85))),
        *(ratio(f"AVX2 target, {q} query rows over 2048", f"BM_Avx2/q:{q}", 0.70, "of AVX2 FMA peak")
          for q in (128, 64)),
        *(ratio(f"merge of {parts}, 1024 query rows", f"BM_Merge/q:1024/parts:{parts}", 0.8, "of copy")
          for parts in (8, 2)),
        *(ratio(f"rotation in place, {name}", f"BM_RotateInPlace/style:{style}", 0.8,
                "of touching the bands") for style, name in ((1, "interleaved"), (2, "half-split"))),
        *(ratio(f"rotation of copied rows, {name}", f"BM_RotateCopy/style:{style}", 0.8, "of copy")
          for style, name in ((1, "interleaved"), (2, "half-split"))),
        ratio("through the seam, 16 query rows over 2048", "BM_SeamAttend/q:16/rows:2048/pieces:1", 0.98,
              "of the function"),
        Bar("what the seam adds to the rotation of 1 row", "attention_bench",
            counter("BM_SeamRotate/rows:1", "more_ns"), "ns", at_most=20,
            base=counter("BM_SeamRotate/rows:1", "function_ns")),
        # The rows above use only the vector kernel. Those below are the AMX tile unit's; its peak is a loop of its
        # products on operands in the first cache.
        *(on_amx(f"AMX, {q} query rows over 2048", f"BM_Matrix/q:{q}/rows:2048", precision, bar, "of the tile unit's peak")
          for q, precision, bar in ((128, EXACT, 0.25), (128, WIRE, 0.33), (128, FAST, 0.42), (1024, EXACT, 0.27),
                                (1024, FAST, 0.45))),
        *(on_amx(f"AMX, {q} query rows over 2048", f"BM_AgainstVectors/q:{q}/rows:2048", EXACT, bar,
                 "x the vector kernel") for q, bar in ((128, 4.5), (64, 4.2), (16, 2.8))),
        *(on_amx(f"AMX against oneDNN's bf16, {q} query rows over 2048", f"BM_MatrixAgainstOneDnn/q:{q}", precision, bar,
                 "x oneDNN's products and softmax")
          for q, precision, bar in ((64, FAST, 1.5), (128, FAST, 1.5), (1024, FAST, 1.5), (128, EXACT, 1.0))),
        *(on_amx(f"AMX, 16 query rows over {rows} flushed", f"BM_Flushed/q:16/rows:{rows}", precision, bar,
                 "of reading the rows")
          for rows, precision, bar in ((2048, FAST, 0.43), (32768, FAST, 0.50), (2048, EXACT, 0.37), (32768, EXACT, 0.45))),
        on_amx("AMX, 1 query row over 32768 flushed", "BM_Flushed/q:1/rows:32768", EXACT, 0.90, "of reading the rows"),
        on_amx("AMX, 1 query row over 32768 flushed", "BM_FlushedAgainstVectors/q:1/rows:32768", EXACT, 1.0,
               "x the vector kernel"),
        *(on_amx(f"AMX, selected 2048 of 131072 flushed, {q} query rows", f"BM_SelectedFlushed/q:{q}", FAST, bar,
                 "x dense over 2048 flushed") for q, bar in ((128, 0.66), (16, 0.62))),
        *(on_amx(f"AMX, fp8 rows, {q} query rows over {rows}", f"BM_MatrixFp8/q:{q}/rows:{rows}", EXACT, bar,
                 "x bf16 rows") for q, rows, bar in ((128, 2048, 0.95), (1, 32768, 1.2), (16, 32768, 1.2))),
        *(on_amx(f"AMX on two threads, {q} query rows over 2048", f"BM_MatrixTwoThreads/q:{q}/rows:2048", EXACT, 0.90,
                 "of what two peak loops gain") for q in (16, 128)),
        # VDPBF16PS of Zen 4 and 5; its bound is the units' instructions. Those of fast are VDPBF16PS alone.
        *(on_dot(f"{q} query rows over 2048", f"BM_Dot/q:{q}/rows:2048", precision, bar, "of its instructions' bound")
          for q, precision, bar in ((16, FAST, 0.65), (128, EXACT, 0.85), (128, FAST, 0.80), (1024, EXACT, 0.85), (1024, FAST, 0.75))),
        *(on_dot(f"{rows_of(q)} over 2048".replace("row", "query row"), f"BM_DotAgainstVectors/q:{q}/rows:2048", precision,
                 bar, "x the vector kernel")
          for q, precision, bar in ((128, EXACT, 1.3), (128, FAST, 1.8), (64, EXACT, 1.3), (16, EXACT, 1.35), (16, FAST, 1.75),
                                (1, EXACT, 1.0))),
        *(on_dot(f"{rows_of(q)} over 32768 flushed".replace("row", "query row"),
                 f"BM_DotFlushedAgainstVectors/q:{q}/rows:32768", precision, bar, "x the vector kernel")
          for q, precision, bar in ((16, EXACT, 1.3), (16, FAST, 1.6), (1, EXACT, 1.0))),
        on_dot("1 query row over 32768 flushed", "BM_DotFlushed/q:1/rows:32768", EXACT, 0.70, "of reading the rows"),
        *(on_dot(f"fp8 rows, {rows_of(q)} over {rows}".replace(" row", " query row", 2).replace("fp8 query", "fp8"),
                 f"BM_DotFp8/q:{q}/rows:{rows}", EXACT, bar, "x bf16 rows")
          for q, rows, bar in ((128, 2048, 0.9), (1, 32768, None), (16, 32768, None))),
        # The reference engine, two threads, on the target that this machine chooses.
        *(Bar(f"prefill of 8,192 tokens, {name}", "prefill_bench", counter(f"BM_Prefill/{target}", "ratio"),
              "x the f32 path", at_least=bar)
          for name, target, bar in (("AMX", "AMX", 3.0), ("VDPBF16PS", "AVX512_BF16", 1.3))),
    ],
}


def digits(unit):
    counts = ("changes", "errors", "queries", "answers", "alerts", "acknowledged", "UNAVAILABLE", "B", "B of memory", "cases", "chunks",
              "tokens", "rows", "tokens as local", "MiB", "us of the stock kernel", "commands", "tests", "passed", "skipped", "s for the first",
              "faults", "cells", "reports", "asked", "calls", "steps", "blocks")
    return {"us": 1, "of a logprob": 4, "x a prefill of all": 4, "ns": 0, "/s": 0, "/s of the stock kernel": 0, "worst difference of a logit": 4, "of a logit by another kernel": 4, "us of it merging": 1, **dict.fromkeys(counts, 0)}.get(unit, 2)
