// Chooses which of a chunk's holders a call asks.
//
// Members that hold the same chunks are replicas of each other. A call asks one of them for all of
// those chunks. It asks the cheapest by the cost model (client/decide/cost_model.h), with the
// constants and loads known at that time. The order in which holders are listed decides nothing:
//   * A holder without known constants cannot be compared, so it comes after those that can.
//     Requester::Explain measures all.
//   * A holder that failed a call lately comes after all that did not. Among them the one that is
//     avoided for the shortest time comes first. One that the directory no longer lists comes last.
//   * The chosen holder stays until another is cheaper by more than the model's own error.
//   * A call of f32 partials wants equal bits, which only holders of one kernel target give. It
//   asks
//     holders of the target that can attend the most tokens of the corpus, where a group has one.
//     So a cheaper replica of another target does not change the bits of a decode.
//
// Chunks are grouped by the whole list of their holders, and a choice moves a whole group. So a
// group's partials are made of the same chunks in the same order at every replica, and the answer
// has the same bits (I2).

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/partial.h"
#include "client/decide/network_oracle.h"
#include "client/decide/predicate.h"
#include "client/holders/holder_link.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"
#include "proto/kernel_target.h"

namespace ckv {

// Returns the known constants of a holder, without asking anybody. They rank replicas that were
// measured before, or that only the oracle knows the way to. The result has group 0 and token_share
// 1. `oracle` may be null. `geometry` is that of the corpus.
Candidate CandidateOf(const HolderPeer& peer, const PeerTable& peers, NetworkOracle* oracle,
                      const Geometry& geometry);

// The size of a call. A fetch sets only the primitive.
struct ReplicaWork {
  Primitive primitive = Primitive::kRoute;  // or kFetch
  uint32_t query_rows = 1;
  uint32_t selected = 0;  // rows a query attends; 0 means all
  PartialDtype wire = PartialDtype::kBf16;
};

// Chunks that the same members hold.
struct ReplicaGroup {
  // Ordinals in LinkTable::ChunkLinks::links: holders first, then those with leased copies.
  std::vector<uint32_t> links;
  uint64_t token_count = 0;
  std::array<uint32_t, kPrimitiveCount> chosen{};  // ordinals in `links`, by Primitive
  uint64_t asked = 0;  // LinkTable::ChunkLinks::last_use of the last call that asked it

  uint32_t Chosen(Primitive primitive) const { return links[chosen[size_t(primitive)]]; }
};

// When the choices of one primitive were made, over all groups of a corpus.
struct ReplicaRanking {
  Instant next;               // when to choose anew
  uint64_t avoid_count = 0;   // PeerTable::avoid_count at that choice
  uint64_t target_count = 0;  // PeerTable::target_count at that choice
  bool made = false;
  bool one_target = false;  // it kept to one kernel target
};

// Belongs to one call context. Keeps its memory between calls; not thread-safe.
class ReplicaChooser {
 public:
  // How long a choice stays. Loads change from request to request, and a choice that followed each
  // change would only chase them. Looking up a holder's constants also costs a lock or two.
  static constexpr Duration kRankingAgeMax = std::chrono::milliseconds(100);
  // How much cheaper another holder must be to be chosen instead. It is half of the model's error,
  // which is 12 % over all query counts (deploy/bench.sh decision).
  static constexpr double kGainMin = 0.06;

  // Looks up the known constants of each link's holder. Call it before Choose. Holders in `tried`
  // come after all others, except after holders that are gone.
  void Look(const Geometry& geometry, const ReplicaWork& work, std::span<HolderLink* const> links,
            const PeerTable& peers, const LaneShape& lane_shape, NetworkOracle* oracle, Instant now,
            std::span<const HolderPeer* const> tried = {});
  // For work that wants equal bits: finds the kernel target that Choose keeps to. It is the one
  // whose holders have most tokens over all groups, without those that are avoided. If two have as
  // many, `mine` wins, the target of what this process computes itself. Then the one with more
  // copies of them does, so that one odd holder does not get all calls.
  void KeepToOneTarget(std::span<const ReplicaGroup> groups, KernelTargetId mine);
  // Sets group.chosen for the work's primitive.
  void Choose(ReplicaGroup& group);

 private:
  // The group's holders of a target that are not avoided.
  uint64_t CountOf(const ReplicaGroup& group, KernelTargetId target) const;

  Primitive primitive_ = Primitive::kRoute;
  DecisionInput input_;
  std::vector<Candidate> candidates_;    // one per link
  std::vector<Instant> avoided_until_;   // one per link; kInstantMax if its holder is gone
  std::vector<KernelTargetId> targets_;  // one per link
  KernelTargetId wanted_ = KernelTargetId::kUnknown;  // unknown: any
  Instant now_;
};

}  // namespace ckv
