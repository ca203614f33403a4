// One run of a fleet of ckv: requests arrive, are placed on requesters, and decode their steps
// against the rows of documents.
//
//   placed     by Rank (client/rank/rank.h): the rows that a requester has in its local row cache,
//              its queue, its batch, and its own copies under way. Equal ones take turns
//   a step     rows that are cached here, or that this node's own holder has, are attended here.
//              For the others, the step sends its query rows to one holder of each group of chunks.
//              The kernel there computes a batch, and partials return. The slowest part ends it
//   bytes      those of queries, of partials and of fetched rows are flows over the fabric, with
//              max-min fair rates. The flow of a step has the bytes of all its layers
//   time       L x T_probe, L x T_merge for each holder, flows, waits, and L x the batch's kernel
//
// The own attends of a requester's contexts are batched, as in an engine's call of many sequences.
// Overloaded holders do not refuse: requests wait. There are no hedges, failures, or leased copies
// of hot chunks. An engine's other work takes no time.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/simulate/fleet_spec.h"

namespace ckv {

struct FleetQuantiles {
  double mean = 0, p50 = 0, p99 = 0;
};
// Sorts the values. All are 0 if there are none.
FleetQuantiles QuantilesOf(std::vector<float>& values);

struct FleetStats {
  uint64_t requests = 0;      // measured
  FleetQuantiles latency_ms;  // from the arrival to the last token
  FleetQuantiles first_ms;    // from the arrival to the first token
  FleetQuantiles token_ms;    // each step, without waits before the first
  // The rest is about the whole run, with its warm-up.
  double seconds = 0;  // until the last token
  double routed_bytes = 0, fetched_bytes = 0;
  double link_bytes = 0;  // that nodes' own links carried, in both directions
  uint64_t recomputed_tokens = 0;
  uint64_t copies = 0, evictions = 0;
  double cached_share = 0;                        // share of the chunks that steps attended
  double own_share = 0;                           // the same, of the requester's own holder
  double kernel_share = 0, kernel_share_max = 0;  // use of kernels: mean, and of the busiest node
  double nic_share = 0, nic_share_max = 0;        // the same of links, by direction
  uint64_t events = 0;
};

// Simulates the requests until each has its last token. `done` is called for each of them.
//   InvalidArgument     as ValidateFleet, PlaceFleet and FabricTree::Create; or `tree`, which may
//                       be null, has another number of servers than the spec has nodes.
absl::StatusOr<FleetStats> RunFleet(const FleetSpec& spec,
                                    const std::vector<FleetRequest>& requests,
                                    const FabricTree* tree, absl::FunctionRef<void()> done);

}  // namespace ckv
