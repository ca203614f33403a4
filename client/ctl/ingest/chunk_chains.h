// How much of a document a corpus has.

#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "absl/hash/hash.h"
#include "proto/corpus.h"
#include "proto/ids.h"

namespace ckv::ctl {

// The chunks of a corpus by the chunk that each follows. Immutable, so thread-safe.
class ChunkChains {
 public:
  // A corpus that does not exist has none.
  ChunkChains() = default;
  // Takes what it needs of `corpus`. `key` is of its tenant.
  ChunkChains(const Corpus& corpus, const TenantKey& key);

  // Returns how many of `tokens`, from the first on, are a chain of chunks that begins at
  // position 0. Ids are made anew from the tokens, so nothing but these tokens counts. The longer
  // one of two chunks that fit at a place is followed.
  uint64_t CoveredTokens(std::span<const int32_t> tokens) const;

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
