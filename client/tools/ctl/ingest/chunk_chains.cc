#include "client/tools/ctl/ingest/chunk_chains.h"

#include "proto/geometry.h"
#include "store/memory/chunk_id.h"

namespace ckv::ctl {

ChunkChains::ChunkChains(const Corpus& corpus, const TenantKey& key)
    : fingerprint_(ModelFingerprint(corpus.geometry)), key_(key) {
  for (const ChunkPlacement& chunk : corpus.chunks)
    after_.emplace(chunk.parent(), Link{chunk.id, chunk.position, chunk.token_count});
}

uint64_t ChunkChains::MatchedTokens(std::span<const int32_t> tokens) const {
  ChunkId parent;
  uint64_t covered = 0;
  while (covered < tokens.size()) {
    const Link* next = nullptr;
    const auto [begin, end] = after_.equal_range(parent);
    for (auto one = begin; one != end; ++one) {
      const Link& link = one->second;
      if (link.position != covered || link.token_count > tokens.size() - covered) continue;
      if (next != nullptr && link.token_count <= next->token_count) continue;
      const ChunkId plain =
          ComputeChunkId(fingerprint_, parent, covered, tokens.subspan(covered, link.token_count));
      if (TaggedChunkId(plain, VerificationTagOf(plain, key_)) == link.id) next = &link;
    }
    if (next == nullptr) break;
    covered += next->token_count;
    parent = next->id;
  }
  return covered;
}

}  // namespace ckv::ctl
