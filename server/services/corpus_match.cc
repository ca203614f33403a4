#include "server/services/corpus_match.h"

#include "proto/geometry.h"
#include "store/memory/chunk_id.h"

namespace ckv {

CorpusMatch MatchCorpus(const Corpus& corpus, std::span<const int32_t> tokens, const TenantKey& key,
                        std::span<const ExtraKey> extra_keys) {
  const ChunkId fingerprint = ModelFingerprint(corpus.geometry);
  CorpusMatch match;
  // A corpus may list chunks of several chains, and tokens that match one by one are no prefix
  // then. The id of a chunk with another parent differs.
  ChunkId parent;  // zero: of the first
  for (const ChunkPlacement& chunk : corpus.chunks) {
    if (chunk.position - corpus.chunks.front().position != match.token_count) break;
    if (chunk.token_count > tokens.size() - match.token_count) break;
    const auto here = tokens.subspan(match.token_count, chunk.token_count);
    const ChunkId plain =
        ComputeChunkId(fingerprint, parent, chunk.position, here,
                       ExtraKeysOf(extra_keys, match.token_count, match.token_count + here.size()));
    if (plain != chunk.id && TaggedChunkId(plain, VerificationTagOf(plain, key)) != chunk.id) break;
    ++match.chunk_count;
    match.token_count += chunk.token_count;
    parent = chunk.id;
  }
  return match;
}

}  // namespace ckv
