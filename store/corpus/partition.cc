#include "store/corpus/partition.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/xxh3.h"

namespace ckv {
namespace {

absl::Status CheckTargets(std::span<const WeightedHolder> targets, uint32_t replicas) {
  if (replicas == 0 || replicas > kReplicaCountMax || replicas > targets.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("partition: %d replicas on %d holders, must be 1 to the number of holders, "
                        "at most %d",
                        replicas, targets.size(), kReplicaCountMax));
  }
  absl::flat_hash_set<HolderId> seen;
  for (const WeightedHolder& target : targets) {
    if (target.id.name.empty() || !seen.insert(target.id).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "partition: the holder '%s' is there twice or has no name", target.id.name));
    }
    if (!(target.weight > 0) || target.weight > kWeightMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("partition: holder %s has weight %g, must be above 0 and at most %g",
                          target.id.name, target.weight, kWeightMax));
    }
  }
  return absl::OkStatus();
}

// Returns a value in (0, 1) that must never change, because placements depend on it.
double Uniform(uint32_t group, const HolderId& holder) {
  const uint64_t hash = XXH3_64bits_withSeed(holder.name.data(), holder.name.size(), group);
  return (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
}

uint32_t GroupOfId(const ChunkId& id) {
  uint32_t low;
  std::memcpy(&low, id.bytes.data(), sizeof(low));
  return low % kPlacementGroupCount;
}

std::vector<uint32_t> GroupsOf(const Corpus& corpus, PartitionPolicy policy) {
  const size_t count = corpus.chunks.size();
  std::vector<uint32_t> groups(count);
  absl::flat_hash_map<ChunkId, uint32_t> of_parent;
  for (size_t i = 0; i < count; ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    switch (policy) {
      case PartitionPolicy::kHash:
        groups[i] = GroupOfId(chunk.id);
        break;
      case PartitionPolicy::kDocument: {
        const auto parent = of_parent.find(chunk.parent());
        const bool begins = chunk.parent().IsZero() || parent == of_parent.end();
        groups[i] = begins ? GroupOfId(chunk.id) : parent->second;
        of_parent.emplace(chunk.id, groups[i]);
        break;
      }
      case PartitionPolicy::kRange:
        groups[i] = static_cast<uint32_t>(i * kPlacementGroupCount / count);
        break;
    }
  }
  return groups;
}

// The holders of groups, computed at the first use.
class Rendezvous {
 public:
  Rendezvous(std::span<const WeightedHolder> targets, uint32_t replicas)
      : targets_(targets), replicas_(replicas), of_group_(kPlacementGroupCount) {}

  const std::vector<uint32_t>& Of(uint32_t group) {
    std::vector<uint32_t>& chosen = of_group_[group];
    if (!chosen.empty()) return chosen;
    scores_.clear();
    for (uint32_t i = 0; i < targets_.size(); ++i)
      scores_.push_back({-targets_[i].weight / std::log(Uniform(group, targets_[i].id)), i});
    std::partial_sort(scores_.begin(), scores_.begin() + replicas_, scores_.end(),
                      [&](const Score& a, const Score& b) {
                        if (a.first != b.first) return a.first > b.first;
                        return targets_[a.second].id < targets_[b.second].id;
                      });
    for (uint32_t r = 0; r < replicas_; ++r) chosen.push_back(scores_[r].second);
    return chosen;
  }

 private:
  using Score = std::pair<double, uint32_t>;
  const std::span<const WeightedHolder> targets_;
  const uint32_t replicas_;
  std::vector<Score> scores_;
  std::vector<std::vector<uint32_t>> of_group_;
};

bool Has(const std::vector<HolderId>& list, const HolderId& holder) {
  return std::find(list.begin(), list.end(), holder) != list.end();
}

}  // namespace

absl::StatusOr<PartitionPolicy> ParsePartitionPolicy(std::string_view name) {
  if (name == "hash") return PartitionPolicy::kHash;
  if (name == "document") return PartitionPolicy::kDocument;
  if (name == "range") return PartitionPolicy::kRange;
  return absl::InvalidArgumentError(
      absl::StrFormat("partition: '%s' is no policy: there are hash, document and range", name));
}

absl::StatusOr<PartitionPlan> PlanPartition(const Corpus& corpus, PartitionPolicy policy,
                                            std::span<const WeightedHolder> targets,
                                            uint32_t replicas) {
  CKV_RETURN_IF_ERROR(CheckTargets(targets, replicas));
  const std::vector<uint32_t> groups = GroupsOf(corpus, policy);
  Rendezvous rendezvous(targets, replicas);
  PartitionPlan plan;
  plan.holders.resize(corpus.chunks.size());
  absl::flat_hash_map<HolderId, int64_t> gained;  // chunks now, less chunks before
  for (uint32_t i = 0; i < corpus.chunks.size(); ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    std::vector<HolderId>& holders = plan.holders[i];
    for (const uint32_t target : rendezvous.Of(groups[i])) holders.push_back(targets[target].id);
    for (const HolderId& holder : holders) {
      ++gained[holder];
      if (Has(chunk.holders(), holder)) continue;
      // Copies are taken from a chunk's holders in turn, so that no old one sends everything.
      plan.copies.push_back({i, chunk.holders()[i % chunk.holders().size()], holder});
      plan.copy_bytes += chunk.token_count * corpus.geometry.token_bytes();
    }
    for (const HolderId& holder : chunk.holders()) {
      --gained[holder];
      if (!Has(holders, holder)) plan.drops.push_back({i, holder, {}});
    }
  }
  for (const auto& [holder, count] : gained)
    plan.copies_min += count > 0 ? static_cast<uint64_t>(count) : 0;
  return plan;
}

}  // namespace ckv
