#include "store/corpus/placement.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/corpus.h"

namespace ckv {
namespace {

size_t RoundedUp(size_t count, size_t parts) { return (count + parts - 1) / parts; }

// Returns the chunks of the holder that has most, if runs of this length are dealt out in turn.
size_t MostChunks(size_t chunk_count, size_t holder_count, size_t run_chunks) {
  const size_t run_count = RoundedUp(chunk_count, run_chunks);
  if (run_count == 0) return 0;
  const size_t rounds = RoundedUp(run_count, holder_count);
  // The last run may be short. It is the first holder's if no other holder has one of that round.
  const bool alone = (run_count - 1) % holder_count == 0;
  return alone ? chunk_count - (run_count - 1) * run_chunks + (rounds - 1) * run_chunks
               : rounds * run_chunks;
}

// Returns the longest run that leaves the primaries balanced.
size_t RunChunks(size_t chunk_count, size_t holder_count) {
  const size_t share = RoundedUp(chunk_count, holder_count);
  size_t chunks = std::bit_ceil(std::max<size_t>(share, 1));
  while (chunks > 1 && MostChunks(chunk_count, holder_count, chunks) > share + share / 8)
    chunks /= 2;
  return chunks;
}

// Returns the indices of the holders of a run: the primary, then in the order of the rotation, or
// those that are farthest apart.
std::vector<size_t> HoldersOfRun(size_t primary, size_t list, size_t count, uint32_t replicas,
                                 std::span<const FailureDomain> domains) {
  std::vector<size_t> taken = {primary};
  std::vector<size_t> left;
  for (size_t i = 0; i + 1 < count; ++i)
    left.push_back((primary + 1 + (list + i) % (count - 1)) % count);
  while (taken.size() < replicas) {
    const size_t next = domains.empty() ? left.front() : FarthestOf(left, taken, domains);
    taken.push_back(next);
    std::erase(left, next);
  }
  return taken;
}

}  // namespace

size_t FarthestOf(std::span<const size_t> candidates, std::span<const size_t> taken,
                  std::span<const FailureDomain> domains) {
  size_t best = candidates.front();
  uint32_t best_separation = 0;
  for (const size_t candidate : candidates) {
    uint32_t separation = UINT32_MAX;
    for (const size_t one : taken)
      separation = std::min(separation, SeparationOf(domains[candidate], domains[one]));
    if (separation <= best_separation) continue;
    best = candidate;
    best_separation = separation;
  }
  return best;
}

absl::StatusOr<std::vector<std::vector<HolderId>>> PlaceChunks(
    size_t chunk_count, std::span<const HolderId> holders, uint32_t replicas,
    std::span<const FailureDomain> domains) {
  if (chunk_count > kCorpusChunkCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("placement: %d chunks, limit %d", chunk_count, kCorpusChunkCountMax));
  }
  if (replicas == 0 || replicas > kReplicaCountMax || replicas > holders.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("placement: %d replicas on %d holders, must be 1 to the number of holders, "
                        "at most %d",
                        replicas, holders.size(), kReplicaCountMax));
  }
  absl::flat_hash_set<HolderId> seen;
  for (const HolderId& holder : holders) {
    if (holder.name.empty() || !seen.insert(holder).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("placement: the holder '%s' is there twice or has no name", holder.name));
    }
  }
  if (!domains.empty() && domains.size() != holders.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("placement: %d failure domains of %d holders",
                                                      domains.size(), holders.size()));
  }
  // Runs are dealt in rounds of one per holder. Within a round a rank is a rotation of the
  // primaries, so each holder gets one run of it. The rotations differ between the ranks (distinct
  // holders) and, in turn, between rounds (the lists).
  const size_t count = holders.size();
  const size_t run_chunks = RunChunks(chunk_count, count);
  const size_t list_count = std::min<size_t>(kPlacementListsPerHolder, count - replicas + 1);
  std::vector<std::vector<HolderId>> placement(chunk_count);
  for (size_t begin = 0; begin < chunk_count; begin += run_chunks) {
    const size_t run = begin / run_chunks;
    const size_t list = run / count % list_count;
    std::vector<HolderId> of_run;
    for (const size_t h : HoldersOfRun(run % count, list, count, replicas, domains))
      of_run.push_back(holders[h]);
    const size_t end = std::min(chunk_count, begin + run_chunks);
    std::fill_n(placement.data() + begin, end - begin, of_run);
  }
  return placement;
}

}  // namespace ckv
