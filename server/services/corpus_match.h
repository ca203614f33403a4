// Finds how many leading tokens of a prompt match the leading chunks of a corpus.

#pragma once

#include <cstdint>
#include <span>

#include "proto/corpus.h"
#include "proto/extra_keys.h"
#include "proto/ids.h"

namespace ckv {

struct CorpusMatch {
  // How many of the corpus' first chunks match the prompt's first tokens.
  size_t chunk_count = 0;
  // The number of tokens in these chunks.
  uint64_t token_count = 0;
};

// Compares ids, not tokens. A chunk matches if its model, parent, position, these tokens and their
// extra keys give its id, and the chunks before it form its chain. A chunk that extends past the
// end of the prompt does not match. Cost: one SHA-256 over the tokens. `extra_keys` are the
// prompt's, sorted; their positions count from its first token. `key` is the key of the corpus'
// tenant; chunks with plain ids match with any key.
CorpusMatch MatchCorpus(const Corpus& corpus, std::span<const int32_t> tokens,
                        const TenantKey& key = {}, std::span<const ExtraKey> extra_keys = {});

}  // namespace ckv
