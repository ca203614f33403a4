#include "server/prompt_match.h"

#include "proto/geometry.h"
#include "store/chunk_id.h"

namespace ckv {

PromptMatch MatchPrompt(const Corpus& corpus, std::span<const int32_t> tokens) {
  const ChunkId fingerprint = ModelFingerprint(corpus.geometry);
  PromptMatch match;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    if (chunk.token_count > tokens.size() - match.token_count) break;
    const auto here = tokens.subspan(match.token_count, chunk.token_count);
    if (ComputeChunkId(fingerprint, chunk.parent, chunk.position, here) != chunk.id) break;
    ++match.chunk_count;
    match.token_count += chunk.token_count;
  }
  return match;
}

}  // namespace ckv
