// Which of a chunk's holders a call asks.
//
// Members that hold the same chunks are replicas of each other; a call asks one of them for all of
// those chunks. It is the cheapest by the cost model (client/cost_model.h) with the constants and
// loads known at that time, never by their order of coming:
//   * a holder of which no constants are known cannot be compared: it comes after those that can.
//     Requester::Explain measures all;
//   * one that failed a call lately comes after all that did not, the one whose time is over first
//     at the head; one that the directory no longer lists comes last;
//   * the one chosen stays until another is cheaper by more than the model's own error.
//
// Chunks are grouped by the whole list of their holders, so that a choice moves a group as it is:
// its partials are made of the same chunks in the same order, wherever they are made, and the
// answer has the same bits (I2).

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/partial.h"
#include "client/holder_link.h"
#include "client/network_oracle.h"
#include "client/predicate.h"
#include "proto/clock.h"
#include "proto/geometry.h"

namespace ckv {

// What is asked; of a fetch only the primitive.
struct ReplicaWork {
  Primitive primitive = Primitive::kRoute;  // or kFetch
  uint32_t query_rows = 1;
  uint32_t selected = 0;  // rows a query attends; 0: all
  PartialDtype wire = PartialDtype::kBf16;
};

// Chunks that the same members hold.
struct ReplicaGroup {
  std::vector<uint32_t> links;  // ordinals in LinkTable::Route::links: holders first, then leased
  uint64_t token_count = 0;
  std::array<uint32_t, kPrimitiveCount> chosen{};  // ordinals in `links`
  uint64_t asked = 0;                              // LinkTable::Route::last_use of the last call

  uint32_t Chosen(Primitive primitive) const { return links[chosen[size_t(primitive)]]; }
};

// When the choices of one primitive were made, over all groups of a corpus.
struct ReplicaRanking {
  Instant next;              // to be made anew then
  uint64_t avoid_count = 0;  // PeerTable::avoid_count when it was made
  bool made = false;
};

// Of one engine. Keeps its memory between calls; not thread-safe.
class ReplicaChooser {
 public:
  // Loads change from request to request, but a choice that followed each would only chase them:
  // and asking what is known of a holder costs a lock or two.
  static constexpr Duration kRankingAgeMax = std::chrono::milliseconds(100);
  // Another must be cheaper by this much to be moved to: half of what the model may be off, 12 %
  // over all query counts (deploy/bench.sh decision).
  static constexpr double kGainMin = 0.06;

  // Looks up what is known of each link's holder; before Choose. Those in `tried` come after all
  // that are not, but for those that are gone.
  void Look(const Geometry& geometry, const ReplicaWork& work, std::span<HolderLink* const> links,
            const PeerTable& peers, const LaneShape& lane_shape, NetworkOracle* oracle, Instant now,
            std::span<const HolderPeer* const> tried = {});
  // Sets group.chosen of the work's primitive.
  void Choose(ReplicaGroup& group);

 private:
  Primitive primitive_ = Primitive::kRoute;
  DecisionInput input_;
  std::vector<Candidate> candidates_;   // of the links
  std::vector<Instant> avoided_until_;  // of the links; kInstantMax: gone
  Instant now_;
};

}  // namespace ckv
