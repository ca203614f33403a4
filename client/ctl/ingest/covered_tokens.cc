#include "client/ctl/ingest/covered_tokens.h"

#include <unordered_map>

#include "absl/hash/hash.h"
#include "proto/geometry.h"
#include "store/memory/chunk_id.h"

namespace ckv::ctl {

uint64_t CoveredTokens(const Corpus& corpus, const TenantKey& key,
                       std::span<const int32_t> tokens) {
  const ChunkId fingerprint = ModelFingerprint(corpus.geometry);
  std::unordered_multimap<ChunkId, const ChunkPlacement*, absl::Hash<ChunkId>> after;
  for (const ChunkPlacement& chunk : corpus.chunks) after.emplace(chunk.parent, &chunk);
  ChunkId parent;
  uint64_t covered = 0;
  while (covered < tokens.size()) {
    const ChunkPlacement* next = nullptr;
    const auto [begin, end] = after.equal_range(parent);
    for (auto one = begin; one != end; ++one) {
      const ChunkPlacement& chunk = *one->second;
      if (chunk.position != covered || chunk.token_count > tokens.size() - covered) continue;
      const ChunkId plain =
          ComputeChunkId(fingerprint, parent, covered, tokens.subspan(covered, chunk.token_count));
      if (SealedChunkId(plain, SealOf(plain, key)) != chunk.id) continue;
      if (next == nullptr || chunk.token_count > next->token_count) next = &chunk;
    }
    if (next == nullptr) break;
    covered += next->token_count;
    parent = next->id;
  }
  return covered;
}

}  // namespace ckv::ctl
