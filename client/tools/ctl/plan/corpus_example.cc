#include "client/tools/ctl/plan/corpus_example.h"

namespace ckv::ctl {

// Constants of the GPU are those of arXiv:2606.01502 (probe 16 us and 25 GB/s in section 4.3,
// computing from 15 us at decode in 6.3, a splice of 100 us a layer in 7, prefill of 0.5 to 1.5 us
// a token and layer in 5.1), and memory at FlashMLA's 3000 GB/s. Those of the core are of a Zen 5
// (deploy/adr/0026-kernel-curves-with-a-floor.md).
const char* const kCorpusExampleProfile =
    R"(# A corpus, its load, and machines on offer. Replace the numbers by yours.
corpus:
  model: deepseek-v2-lite           # or geometry: {layers: 27, heads: 16, d_qk: 576, d_v: 512}
  dtype: bf16                       # or fp8_ds_mla; row_bytes: 1152 means bf16, too
  tokens: 1e8                       # or documents: {count: 5000, tokens: 20000}
  replicas: 2                       # copies of each chunk
  domains: 4                        # racks or zones of the holders; left out: as many as replicas
  domains_lost: 1                   # that may fail while the goal is still met; left out: 0
load:
  agents: 256                       # each has one call at a time. An engine with a batch is one
  steps_per_s: 20                   # decode steps of each
  batch: 1                          # sequences of a call, each with a query row a head;
                                    # or query_rows: 16
  context_tokens: 32768             # tokens of the corpus that a call is about
  context_cv: 0.5                   # their deviation divided by that mean; left out: 0
  selected: 2048                    # rows that an indexer chooses of them; left out: all
  near_share: 0.25                  # share of calls whose rows the requester already has
  session_steps: 500                # steps of an agent on the same tokens
  sharing: 1                        # agents of a requester on the same tokens; left out: 1
  holders_per_call: 1               # over which the tokens of a call are spread; left out: 1
goal:                               # of the added time, without calls to near rows
  per: layer                        # or step
  p50_us: 600                       # one of the two may be left out
  p99_us: 2000
  utilisation_max: 0.7              # of kernels and links
requesters:
  count: 8
  network_Gbps: 200
  cache_GiB: 0                      # room of each local row cache; with 0, nothing is fetched
  costs:                            # or calibration: FILE, of ckvctl calibrate
    merge_per_row_us: 0.02
    splice_per_token_layer_us: 0.0
    splice_per_layer_us: 100
    prefill_per_token_layer_us: 1.0   # left out: nothing is recomputed
    kernel:
      base_us: 15
      floor_us_per_token: 0.000384
      anchors: [{query_rows: 16, us_per_token: 0.000384}]
network:                            # may be left out
  total_Gbps: 3200                  # between all requesters and all holders
machines:
  - name: gpu
    count_max: 256
    memory_GiB: 72                  # for rows
    network_Gbps: 200
    round_trip_us: 16
    price_per_hour: 4.0             # of your offer
    kernel:
      base_us: 15
      floor_us_per_token: 0.000384  # to read a row of one layer
      gather_factor: 2              # selected rows against adjacent ones; left out: 1
      anchors:                      # more numbers of query rows make a curve
        - {query_rows: 16, us_per_token: 0.000384}
  - name: cpu-core
    count_max: 512
    memory_GiB: 120
    disk_GiB: 400                   # left out: rows are in memory only
    network_Gbps: 25
    round_trip_us: 30
    price_per_hour: 0.4
    processors_per_holder: 1        # less if the kernels of holders share their host's processors
    kernel:
      base_us: 7
      floor_us_per_token: 0.053
      anchors:
        - {query_rows: 1, us_per_token: 0.048}
        - {query_rows: 16, us_per_token: 0.132}
# - name: measured                  # instead of kernel and round_trip_us:
#   calibration: fleet.json         # ckvctl calibrate --profile fleet.json, of rows as wide
#   lane: {holder: h0, fabric: tcp} # if it has more than one
policy: auto                        # by the predicate; or route, fetch or local
)";

}  // namespace ckv::ctl
