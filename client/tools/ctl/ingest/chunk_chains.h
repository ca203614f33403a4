// Finds how much of a document a corpus has.

#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "absl/hash/hash.h"
#include "proto/corpus.h"
#include "proto/ids.h"

namespace ckv::ctl {

// The chunks of a corpus, indexed by their parent. Immutable, so thread-safe.
class ChunkChains {
 public:
  // For a corpus that does not exist: there are no chunks.
  ChunkChains() = default;
  // Copies what it needs of `corpus`. `key` is that of its tenant.
  ChunkChains(const Corpus& corpus, const TenantKey& key);

  // Returns how many of `tokens`, from the first on, are covered by a chain of chunks that begins
  // at position 0. Recomputes the ids from the tokens, so only these tokens match. If several
  // chunks fit at a position, follows the longest one.
  uint64_t MatchedTokens(std::span<const int32_t> tokens) const;

 private:
  struct Link {
    ChunkId id;
    uint64_t position = 0;
    uint32_t token_count = 0;
  };

  ChunkId fingerprint_;
  TenantKey key_;
  std::unordered_multimap<ChunkId, Link, absl::Hash<ChunkId>> after_;  // by parent
};

}  // namespace ckv::ctl
