// Chooses which of a chunk's holders a call queries.
//
// Members that hold the same chunks are replicas of each other. A call queries one of them for all
// of those chunks. It chooses one that costs about as much as the cheapest, by the cost model
// (client/cost/cost_model.h). The model uses the constants and loads known at that time. The
// order in which holders are listed has no effect:
//   * A holder without known constants cannot be compared. It counts as an equal of the cheapest,
//     and its turns show what it costs. Requester::Explain measures all.
//   * A holder that failed a call recently ranks after all that did not. Among those, the one that
//     is avoided for the shortest time ranks first. One that the directory no longer lists ranks
//     after them. One that failed this call ranks last.
//   * Holders that cost within kEqualMax of the cheapest count as equal and take turns. Their
//     shares are proportional to 1 / cost. A turn lasts TurnCalls calls, which all query the same
//     holder.
//   * An equal that has not answered LaneProfile::route_elbow requests of this requester, which may
//     also be slices of fetches, gets no turn. If all equals have so many, all take turns.
//   * A holder that costs far more, and that no call has queried for a while, is measured again. If
//     it was measured under load, no reply would ever show that.
//   * A call of f32 partials needs equal bits, which only holders of one kernel target give. It
//     uses the target that can attend the most tokens of the corpus, in groups that have it. So a
//     cheaper replica of another target does not change the bits of a decode.
//
// Chunks are grouped by the whole list of their holders, and a choice applies to a whole group. So
// a group's partials are computed over the same chunks in the same order at every replica, and the
// answer has the same bits (I2).

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/partial.h"
#include "client/cost/network_oracle.h"
#include "client/cost/predicate.h"
#include "client/holders/holder_link.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/kernel_target.h"

namespace ckv {

// Returns the known constants of a holder, without a query. They rank replicas that were measured
// before, or whose path only the oracle has. The result has group 0 and token_share 1. `oracle` may
// be null. `geometry` is that of the corpus.
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
  std::array<float, kReplicaCountMax> cost_us{};    // cost of a round of each, at the last ranking
  std::array<double, kReplicaCountMax> given_us{};  // cost of the turns that each had
};

// Chunks that the same members hold.
struct ReplicaGroup {
  // Ordinals in ChunkLinks::links: holders first, then those with leased copies.
  std::vector<uint32_t> links;
  uint64_t token_count = 0;
  std::array<uint32_t, kPrimitiveCount> chosen{};  // ordinals in `links`, by Primitive
  std::array<ReplicaTurns, kPrimitiveCount> turns{};
  uint32_t first = 0;      // the first of equals to have a turn; differs between callers
  uint64_t requested = 0;  // ChunkLinks::last_use of the last call that used it

  uint32_t Chosen(Primitive primitive) const { return links[chosen[size_t(primitive)]]; }
};

// When the choices of one primitive were made, over all groups of a corpus.
struct ReplicaRanking {
  Instant next;               // when to choose again
  uint64_t avoid_count = 0;   // PeerTable::avoid_count at that choice
  uint64_t target_count = 0;  // PeerTable::target_count at that choice
  bool made = false;
  bool one_target = false;  // it used one kernel target
  uint32_t calls_left = 0;  // until others have their turn
};

// Belongs to one call context. Keeps its memory between calls; not thread-safe.
class ReplicaChooser {
 public:
  // How long a choice is used. Loads change from request to request, and a choice that followed
  // each change would only chase them. Looking up a holder's constants also costs a lock or two.
  static constexpr Duration kRankingAgeMax = std::chrono::milliseconds(100);
  // Replicas that cost at most this share more than the cheapest are equal to it. The model is off
  // by 12 % over all query counts (deploy/bench.sh decision), for each of the two that are
  // compared.
  static constexpr double kEqualMax = 0.25;
  // Returns the calls of a turn. Another replica has other handles: looking them up costs some 50
  // ns a chunk, shared by the calls of a turn. A fetch moves so much data that each is a turn.
  static constexpr uint32_t TurnCalls(Primitive primitive) {
    return primitive == Primitive::kRoute ? 16 : 1;
  }
  // A replica that costs more than DoubtCount::kFactor x the cheapest is doubted after this time
  // without an answer.
  static constexpr Duration kSilentMax = std::chrono::seconds(10);

  // Looks up the known constants of each link's holder. Call it before Choose. Holders in `tried`
  // rank after all others, even after holders that are gone.
  void Look(const Geometry& geometry, const ReplicaWork& work, std::span<HolderLink* const> links,
            const PeerTable& peers, const LaneShape& lane_shape, NetworkOracle* oracle, Instant now,
            std::span<const HolderPeer* const> tried = {});
  // For work that needs equal bits: finds the kernel target that Choose uses. It is the one whose
  // holders have the most tokens over all groups, without holders that are avoided. In a tie `mine`
  // wins, the target of what this process computes itself. Then the one with more copies of the
  // tokens wins, so that one odd holder does not get all calls.
  void KeepToOneTarget(std::span<const ReplicaGroup> groups, KernelTargetId mine);
  // Ranks the group's replicas for the work's primitive, and begins a turn.
  void Choose(ReplicaGroup& group);
  // Gives the next turn to one of the replicas that were equal at the last ranking. Does nothing
  // for a group without equals.
  static void NextTurn(ReplicaGroup& group, Primitive primitive);

 private:
  // Records which of the allowed replicas are equal, and doubts those that no call queries.
  void NoteEquals(ReplicaGroup& group, std::span<const RankedCandidate> ranked);
  // Returns how many of the group's holders have this target and are not avoided.
  uint64_t CountOf(const ReplicaGroup& group, KernelTargetId target) const;

  Primitive primitive_ = Primitive::kRoute;
  DecisionInput input_;
  std::vector<Candidate> candidates_;    // one per link
  std::vector<HolderPeer*> peers_;       // one per link
  std::vector<Instant> avoided_until_;   // one per link; kInstantMax if its holder is gone
  std::vector<KernelTargetId> targets_;  // one per link
  std::vector<uint8_t> at_elbow_;        // one per link: 1 if it has that many; only for routes
  KernelTargetId wanted_ = KernelTargetId::kUnknown;  // unknown: any
  Instant now_;
};

}  // namespace ckv
