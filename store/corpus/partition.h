// Which holders have which chunks of a corpus, by weight, so that a change of holders or weights
// moves little; and the plan of getting there.
//
// A chunk belongs to one of 2^16 placement groups, by policy; a group's holders are those of the
// highest scores, weighted rendezvous hashing (Schindelhauer and Schomaker, SPAA 2005):
//
//   score(group, holder) = -weight / ln u,   u = a fixed hash of (group, holder) in (0, 1)
//
// A holder's share is its weight over all weights, and when one weight changes, chunks move only to
// or from that holder: as few as can be, but for the chance of a hash.

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
  kHash,      // chunks apart: every query's work is spread over all holders
  kDocument,  // a chain of chunks together: a query over one document asks one holder
  kRange,     // neighbours together, 1 / kPlacementGroupCount of the corpus a group
};
//   InvalidArgument     names the policies.
absl::StatusOr<PartitionPolicy> ParsePartitionPolicy(std::string_view name);

struct WeightedHolder {
  HolderId id;
  double weight = 1;  // above 0, at most kWeightMax; of memory or of speed, as the operator likes
};
inline constexpr double kWeightMax = 1e6;

// One chunk to be copied, and from where; or a copy that is not wanted any more.
struct ChunkMove {
  uint32_t chunk = 0;  // ordinal in the corpus
  HolderId from;       // of a copy: one that has it. Of a drop: who drops it
  HolderId to;         // empty: a drop
};

struct PartitionPlan {
  // Of each chunk, in the order of the corpus: its holders, the one with the highest score first.
  std::vector<std::vector<HolderId>> holders;
  std::vector<ChunkMove> copies;  // to be made before the manifest is switched
  std::vector<ChunkMove> drops;   // after it
  uint64_t copy_bytes = 0;
  // The least that any plan would copy, as the holders' shares of chunks change: what each gets
  // beyond what it had.
  uint64_t copies_min = 0;
};

// The plan that takes `corpus` from where it is to `replicas` copies of each chunk on `targets`.
// A million chunks on 64 holders take about a second.
//   InvalidArgument     no targets, one twice or of no weight, more replicas than targets or than
//                       kReplicaCountMax.
absl::StatusOr<PartitionPlan> PlanPartition(const Corpus& corpus, PartitionPolicy policy,
                                            std::span<const WeightedHolder> targets,
                                            uint32_t replicas);

}  // namespace ckv
