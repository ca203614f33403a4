// Chooses which of a chunk's holders a call asks.
//
// Members that hold the same chunks are replicas of each other. A call asks one of them for all of
// those chunks. By the cost model (client/decide/cost_model.h), with the constants and loads known
// at that time, it asks one that costs about as much as the cheapest. The order in which holders
// are listed decides nothing:
//   * A holder without known constants cannot be compared. It counts as an equal of the cheapest,
//     and its turns tell what it costs. Requester::Explain measures all.
//   * A holder that failed a call lately comes after all that did not. Among them the one that is
//     avoided for the shortest time comes first. One that the directory no longer lists comes last.
//   * Holders that cost within kEqualMax of the cheapest count as equal and take turns. Their
//     shares go by 1 / cost. A turn lasts TurnCalls calls, which all ask the same holder.
//   * A holder that costs far more, and that nobody has asked for a while, is measured anew. If it
//     was measured under load, no reply would ever say so.
//   * A call of f32 partials wants equal bits, which only holders of one kernel target give. It
//     keeps to the target that can attend the most tokens of the corpus, in groups that have it.
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
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/kernel_target.h"

namespace ckv {

// Returns the known constants of a holder, without asking anybody. They rank replicas that were
// measured before, or that only the oracle knows the way to. The result has group 0 and token_share
// 1. `oracle` may be null. `geometry` is that of the corpus.
Candidate CandidateOf(const HolderPeer& peer, const PeerTable& peers, NetworkOracle* oracle,
                      const Geometry& geometry, Instant now);

// The size of a call. A fetch sets only the primitive.
struct ReplicaWork {
  Primitive primitive = Primitive::kRoute;  // or kFetch
  uint32_t query_rows = 1;
  uint32_t selected = 0;  // rows a query attends; 0 means all
  PartialDtype wire = PartialDtype::kBf16;
};

// How the equal replicas of a group share its calls.
struct ReplicaTurns {
  uint8_t equal = 0;  // a bit for each of the group's links that is equal to the cheapest
  std::array<float, kReplicaCountMax> cost_us{};    // a round of each, when they were last ranked
  std::array<double, kReplicaCountMax> given_us{};  // the turns that each had
};

// Chunks that the same members hold.
struct ReplicaGroup {
  // Ordinals in LinkTable::ChunkLinks::links: holders first, then those with leased copies.
  std::vector<uint32_t> links;
  uint64_t token_count = 0;
  std::array<uint32_t, kPrimitiveCount> chosen{};  // ordinals in `links`, by Primitive
  std::array<ReplicaTurns, kPrimitiveCount> turns{};
  uint32_t first = 0;  // the link that has the first turn of equals, so that callers begin apart
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
  uint32_t calls_left = 0;  // until others have their turn
};

// Belongs to one call context. Keeps its memory between calls; not thread-safe.
class ReplicaChooser {
 public:
  // How long a choice stays. Loads change from request to request, and a choice that followed each
  // change would only chase them. Looking up a holder's constants also costs a lock or two.
  static constexpr Duration kRankingAgeMax = std::chrono::milliseconds(100);
  // Replicas that cost at most so much more than the cheapest are equal to it. The model errs by
  // 12 % over all query counts (deploy/bench.sh decision), on each of the two that are compared.
  static constexpr double kEqualMax = 0.25;
  // Calls of a turn. Another replica has other handles: looking them up costs some 50 ns a chunk,
  // of which each call of a turn bears this part. A fetch moves so much that each is a turn.
  static constexpr uint32_t TurnCalls(Primitive primitive) {
    return primitive == Primitive::kRoute ? 16 : 1;
  }
  // After this time without an answer, a replica of DoubtCount::kFactor the cheapest's cost is
  // doubted.
  static constexpr Duration kSilentMax = std::chrono::seconds(10);

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
  // Ranks the group's replicas for the work's primitive, and begins a turn.
  void Choose(ReplicaGroup& group);
  // Gives the next turn to one of those that were equal when they were last ranked. Does nothing to
  // a group without equals.
  static void NextTurn(ReplicaGroup& group, Primitive primitive);

 private:
  // Notes which of those that may be asked are equal, and doubts those that nobody asks.
  void NoteEquals(ReplicaGroup& group, std::span<const RankedCandidate> ranked);
  // The group's holders of a target that are not avoided.
  uint64_t CountOf(const ReplicaGroup& group, KernelTargetId target) const;

  Primitive primitive_ = Primitive::kRoute;
  DecisionInput input_;
  std::vector<Candidate> candidates_;    // one per link
  std::vector<HolderPeer*> peers_;       // one per link
  std::vector<Instant> avoided_until_;   // one per link; kInstantMax if its holder is gone
  std::vector<KernelTargetId> targets_;  // one per link
  KernelTargetId wanted_ = KernelTargetId::kUnknown;  // unknown: any
  Instant now_;
};

}  // namespace ckv
