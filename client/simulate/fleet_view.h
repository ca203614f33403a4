// The knowledge of one simulated requester about holders, and its choice among them.
//
// The choice is the product's: RankCandidates (client/cost/predicate.h) with the candidates that
// client/holders/replica_choice.h makes. Replicas within ReplicaChooser::kEqualMax of the cheapest
// take turns, with shares proportional to 1 / cost. A ranking is used for 100 ms. A turn is one
// step here, and 16 calls in the product. Constants are those of FleetCosts: a fleet that has been
// measured. Loads and the bandwidth of fetches are learned from replies, with the product's
// classes.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/cost/live_here.h"
#include "client/cost/live_queue.h"
#include "client/cost/predicate.h"
#include "client/cost/profile.h"
#include "client/simulate/fleet_spec.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// Returns a simulation's time as the product's classes take it. Their zero means "never".
inline Instant InstantOf(double at_s) {
  return {static_cast<int64_t>(at_s * 1e9) + 1'000'000'000'000};
}

// The cost of a step over a document, as Requester::Cost makes it for the prefetcher.
struct FleetStepCost {
  bool known = false;
  double route_us = 0, cached_us = 0, prefetch_us = 0;
  std::optional<double> prefill_us;  // for all tokens
};

// Not thread-safe.
class FleetView {
 public:
  // Both must outlive it. `node` is that of the requester.
  FleetView(const FleetSpec* spec, const FleetPlacement* placement, uint32_t node);

  // Returns the node to query for the chunks of a group.
  uint32_t ChooseRoute(const FleetPlacement::Group& group, double now_s) {
    return Choose(group, Primitive::kRoute, now_s);
  }
  // Returns the node to fetch a chunk of a group from.
  uint32_t ChooseFetch(const FleetPlacement::Group& group, double now_s) {
    return Choose(group, Primitive::kFetch, now_s);
  }

  // The product's Decide, on a step over these groups of chunks with no cached rows.
  FleetStepCost CostOf(const std::vector<FleetPlacement::Group>& groups, double now_s);
  // The same input, for tests.
  const DecisionInput& input() const { return input_; }

  // A request to a holder begins, or its reply has come, with the holder's queueing time a round.
  void Sent(uint32_t holder) { ++PeerOf(holder).in_flight; }
  void Replied(uint32_t holder, double queue_us, double now_s);
  void Fetched(uint32_t holder, double bytes, double us) {
    PeerOf(holder).bandwidth.Observe(static_cast<uint64_t>(bytes), us);
  }
  // Own rows were attended at once: one layer, `rows` query rows in these runs.
  void AttendedHere(double rows, std::span<const SharedRun> runs, double us, double now_s);

 private:
  struct Peer {
    uint32_t in_flight = 0;
    LiveQueue queue;
    LiveBandwidth bandwidth;
  };
  struct Turns {
    double ranked_s = -1;
    uint32_t equal = 0;  // a bit for each replica
    std::array<double, kReplicaCountMax> cost_us{}, given_us{};
  };
  Peer& PeerOf(uint32_t holder);
  Candidate CandidateOf(uint32_t holder, double now_s);
  uint32_t Choose(const FleetPlacement::Group& group, Primitive primitive, double now_s);
  void RankGroup(const FleetPlacement::Group& group, Primitive primitive, double now_s,
                 Turns& turns);

  const FleetSpec& spec_;
  const FleetPlacement& placement_;
  const uint32_t node_;
  DecisionInput input_;
  LiveHere here_;
  absl::flat_hash_map<uint32_t, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<uint64_t, Turns> turns_;  // by group and primitive
};

}  // namespace ckv
