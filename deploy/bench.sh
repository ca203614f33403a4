#!/usr/bin/env bash
# Builds and runs a set of benchmarks and compares them with their bars. Prints one row per bar and
# exits 0 only if all hold. Run it on an idle machine: with fewer than two free cores it measures
# the scheduler. --realtime (root) runs it ahead of all other work, which stands still for minutes.
#   deploy/bench.sh [--realtime] SET
#     kernels       partial attention on vectors and on matrix units, merge, rotation; oneDNN for comparison
#     data-path     the time that routing adds to the kernel, fetches, many requesters, overload,
#                   gRPC, an idle holder
#     decision      the model against real holders at full speed, 10 and 1 Gbit/s (root, to limit
#                   the network), the curve of a kernel, the predicate, splices; calls of agents beside a plan of them
#     act           cached rows and policy auto; agents on real processes over shm, tcp and 1 Gbit/s
#                   (root, to limit the network); the rule that prefetches, on a trace of requests.
#                   CKV_TRACE names its file: conversation_trace.jsonl of kvcache-ai/Mooncake,
#                   FAST25-release/traces
#     contexts      many sequences in one call, own rows, selections, the fixed tree, streams
#     operate       how waits fit a machine that daemons outnumber; exposure of the units, their life and that of
#                   the packages (root, for a machine with systemd); a directory of 1,000,000 chunks: memory, disk,
#                   restart, changes; and one that is killed 200 times while its fleet works;
#                   the status page of a large fleet, a scrape of many sessions, each query and each alert of deploy/monitoring
#     bindings      from the tokens of a prompt to its chunks; C over C++, Python over C, puts, extensions and fetches by layers
#                   from Python
#     llama         stock llama.cpp from npm with libggml-ckv.so: its attention beside the engine's own, eight agents over
#                   three holders, their memory, whole models of 27 layers
#     vllm          stock vLLM from PyPI with the plug-in: exactness, a random walk over its scheduler, time to the first
#                   token, also beside LMCache's and NIXL's, decode steps, blocks, publishing, what it costs where it is not used;
#                   half an hour
#     fleet         two holders of every chunk, of which one is killed or stopped 500 times, or stops 2 s in 10;
#                   directories on etcd: every program restarted, the leader killed 20 times, one or most members of etcd
#                   away for 10 minutes, 10 minutes of all kinds of faults at once, 1,000,000 chunks; a holder with 4 GiB
#                   drained and lost; 10,000 simulated fleets, and the planted bugs that they find (root, for hosts that
#                   are namespaces; 20 GiB of disk; two hours and a half)
#     models        sparse attention: scores of index keys beside reading them, and the best of 10,000,000 rows
#                   at 16 holders (6 GiB of memory)
#     peers         beside NIXL and Mooncake from PyPI, in turns: fetches on one host and over tcp, also into scattered blocks;
#                   ckv's kernel beside vLLM's for MLA on a CPU; a fleet at rest, and its first call after 90 s
#     store         restart, load and cold read beside the disk's own time, kept stripes, look-ups, plans, cuts
#     field         what users of such systems reported: both commands on a bare machine, health against real faults,
#                   restarts of every holder under load, clock steps, costs measured under load, probes beside idle
#                   connections, a directory whose name moves (root, for namespaces and a clean root)
#     truth         rankings, plans and simulations beside their papers' figures, the model of V2-Lite and V3 and a plan
#                   beside real holders (root, for links of 10 and 1 Gbit/s)
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,41p' "$0" | sed 's/^# \{0,1\}//'; }
realtime=()
if [ "${1:-}" = --realtime ]; then
  realtime=(chrt --fifo 1)
  shift
fi
[ $# -eq 1 ] || { usage >&2; exit 2; }
case $1 in
  -h | --help) usage; exit 0 ;;
  kernels)
    preset=bench targets=(attention_bench matrix_bench dot_bench prefill_bench)
    deploy/install-packages.sh bench
    ;;
  data-path) preset=release targets=(requester_bench data_path_bench) ;;
  decision)
    preset=release targets=(decision_bench curve_bench splice_bench ckvd ckvctl)
    deploy/install-packages.sh check
    ;;
  act)
    [ -r "${CKV_TRACE:-}" ] || { echo "bench: set CKV_TRACE to the trace's file (--help says which)" >&2; exit 2; }
    preset=release targets=(prefetch_rule_bench local_rows_bench agents_bench ckvd)
    deploy/install-packages.sh check
    ;;
  contexts) preset=release targets=(contexts_bench) ;;
  operate)
    preset=release targets=(agents_bench directory_bench ckvd ckvctl attend_caller web_fill)
    deploy/install-packages.sh check
    ;;
  bindings)
    preset=release targets=(prompt_bench c_call_bench c_submit_loop put_loop ckvd ckvctl ckv_c cc_client c_client
                            c_advice c_put c_stopped stand_in_reaches_host)
    deploy/install-packages.sh build check
    ;;
  llama)
    preset=release targets=(ckvd ckvctl ggml_ckv)
    deploy/install-packages.sh build check
    deploy/llama-headers.sh "$preset"
    ;;
  field)
    preset=release targets=(ckvd ckvctl attend_caller c_caller clock_step)
    deploy/install-packages.sh build check field
    ;;
  models)
    preset=bench targets=(score_bench select_bench)
    deploy/install-packages.sh bench
    ;;
  vllm)
    preset=release targets=(ckvd ckvctl ckv_c)
    deploy/install-packages.sh build engines
    ;;
  fleet)
    preset=release targets=(ckvd ckvctl attend_caller c_caller web_fill directory_bench ckv_sim)
    deploy/install-packages.sh check
    ;;
  peers)
    preset=release targets=(ckvd ckv_c c_loop cc_loop rest_echo copy_pipe attend_kernel)
    deploy/install-packages.sh build check engines
    ;;
  store) preset=release targets=(store_bench store_disk_bench store_stripe_bench store_plan_bench) ;;
  truth) preset=release targets=(rank_bench ckvd ckvctl plan_caller) ;;
  *) echo "bench: no set is named '$1'; there are: act, bindings, contexts, data-path, decision, field, fleet, kernels, llama, models, operate, peers, store, truth, vllm" >&2; exit 2 ;;
esac
deploy/build.sh "$preset" "${targets[@]}"
exec "${realtime[@]}" deploy/python.sh tests/bench/bars.py "$1" "build/$preset"
