#include "server/directory/corpus_policy.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace ckv {
namespace {

bool HasSameIds(const Corpus& a, const Corpus& b) {
  return std::equal(
      a.chunks.begin(), a.chunks.end(), b.chunks.begin(), b.chunks.end(),
      [](const ChunkPlacement& one, const ChunkPlacement& other) { return one.id == other.id; });
}

template <typename T>
T FieldOf(const Corpus* corpus, std::optional<T> CorpusPolicy::*field) {
  return corpus == nullptr ? T{0} : (corpus->policy.*field).value_or(T{0});
}

}  // namespace

void SettlePolicy(const Corpus* current, uint64_t now_ms, Corpus& next) {
  CorpusPolicy& policy = next.policy;
  const uint64_t ttl_ms = policy.ttl_ms.value_or(FieldOf(current, &CorpusPolicy::ttl_ms));
  policy.quota_bytes = policy.quota_bytes.value_or(FieldOf(current, &CorpusPolicy::quota_bytes));
  policy.kept_version_count =
      policy.kept_version_count.value_or(FieldOf(current, &CorpusPolicy::kept_version_count));
  const bool is_prolonged = current == nullptr || !HasSameIds(*current, next) ||
                            ttl_ms != FieldOf(current, &CorpusPolicy::ttl_ms);
  policy.expires_at_ms = is_prolonged ? now_ms + ttl_ms : current->policy.expires_at_ms;
  if (ttl_ms == 0) policy.expires_at_ms = 0;
  policy.ttl_ms = ttl_ms;
  // From now on an unset field is none.
  if (policy.ttl_ms == 0u) policy.ttl_ms.reset();
  if (policy.quota_bytes == 0u) policy.quota_bytes.reset();
  if (policy.kept_version_count == 0u) policy.kept_version_count.reset();
}

bool LacksChunks(const Corpus& current, const Corpus& next) {
  // Mostly the chunks stay, and others are appended.
  size_t same = 0;
  const size_t both = std::min(current.chunks.size(), next.chunks.size());
  while (same < both && current.chunks[same].id == next.chunks[same].id) ++same;
  if (same == current.chunks.size()) return false;
  absl::flat_hash_set<ChunkId> ids;
  ids.reserve(next.chunks.size() - same);
  for (size_t i = same; i < next.chunks.size(); ++i) ids.insert(next.chunks[i].id);
  return std::any_of(current.chunks.begin() + static_cast<ptrdiff_t>(same), current.chunks.end(),
                     [&](const ChunkPlacement& chunk) { return !ids.contains(chunk.id); });
}

std::vector<std::shared_ptr<const Corpus>> KeptVersionsOf(const CorporaByKey& corpora,
                                                          const CorpusKey& key) {
  const std::string prefix = key.second + "@";
  std::vector<std::pair<uint64_t, std::shared_ptr<const Corpus>>> found;
  for (auto it = corpora.lower_bound(CorpusKey(key.first, prefix));
       it != corpora.end() && it->first.first == key.first &&
       absl::StartsWith(it->first.second, prefix);
       ++it) {
    if (const auto parsed = ParseVersionName(it->first.second))
      found.emplace_back(parsed->version, it->second);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::shared_ptr<const Corpus>> versions;
  versions.reserve(found.size());
  for (auto& [version, corpus] : found) versions.push_back(std::move(corpus));
  return versions;
}

Corpus KeptVersionFrom(const Corpus& current) {
  Corpus kept = current;
  kept.name = VersionNameOf(current.name, current.version);
  kept.version = 0;
  kept.policy = {.ttl_ms = current.policy.ttl_ms, .quota_bytes = 0, .kept_version_count = 0};
  return kept;
}

}  // namespace ckv
