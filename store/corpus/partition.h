// Plans which holders have which chunks of a corpus, by weight, and which copies are needed for
// that. A change of holders or weights moves few chunks.
//
// A chunk belongs to one of 2^16 placement groups, chosen by the policy. A group's holders are
// those with the highest scores in weighted rendezvous hashing (Schindelhauer and Schomaker, SPAA
// 2005):
//
//   score(group, holder) = -weight / ln u,   u = a fixed hash of (group, holder) in (0, 1)
//
// A holder's share is its weight over the sum of weights. When one weight changes, chunks move only
// to or from that holder, about as few as possible.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/corpus.h"
#include "proto/ids.h"

namespace ckv {

inline constexpr uint32_t kPlacementGroupCount = 1u << 16;

enum class PartitionPolicy : uint8_t {
  kHash,      // spreads chunks, so that every query's work is spread over all holders
  kDocument,  // keeps a chain of chunks together: a query over one document uses one holder
  kRange,     // keeps neighbours together, 1 / kPlacementGroupCount of the corpus in a group
};
// Returns the policy of this name: "hash", "document" or "range".
//   InvalidArgument     there is no such policy; the message lists them.
absl::StatusOr<PartitionPolicy> ParsePartitionPolicy(std::string_view name);

struct WeightedHolder {
  HolderId id;
  double weight = 1;  // above 0, at most kWeightMax; memory or speed, as the operator chooses
};
inline constexpr double kWeightMax = 1e6;

// One step of a plan: a chunk to be copied, or a copy to be dropped.
struct ChunkMove {
  uint32_t chunk = 0;  // ordinal in the corpus
  HolderId from;       // the holder to copy from, or the one that drops its copy
  HolderId to;         // the holder to copy to; unset in a drop
};

struct PartitionPlan {
  // The holders of each chunk, in the order of the corpus, the one with the highest score first.
  std::vector<std::vector<HolderId>> holders;
  std::vector<ChunkMove> copies;  // steps to take before the corpus is published with `holders`
  std::vector<ChunkMove> drops;   // steps to take after that
  uint64_t copy_bytes = 0;        // bytes of rows that `copies` move
  // The fewest copies with which any plan could reach these chunk counts: the sum of the holders'
  // increases.
  uint64_t copies_min = 0;
};

// Plans the steps from the current placement of `corpus` to `replicas` copies of each chunk on
// `targets`. The plan is a function of the arguments alone. A million chunks on 64 holders take
// about a second.
//   InvalidArgument     there are no targets, or more replicas than targets or kReplicaCountMax. Or
//                       a target occurs twice, has no name, or has a weight out of range.
absl::StatusOr<PartitionPlan> PlanPartition(const Corpus& corpus, PartitionPolicy policy,
                                            std::span<const WeightedHolder> targets,
                                            uint32_t replicas);

}  // namespace ckv
