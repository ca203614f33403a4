// Tells how far the tokens of a prompt run along the chunks of a corpus.

#pragma once

#include <cstdint>
#include <span>

#include "proto/corpus.h"
#include "proto/extra_keys.h"
#include "proto/ids.h"

namespace ckv {

struct PromptMatch {
  // The number of the corpus' first chunks that are the prompt's first tokens.
  size_t chunk_count = 0;
  // The tokens that they cover.
  uint64_t token_count = 0;
};

// Compares ids, not tokens. A chunk matches if its model, parent, position, these tokens and their
// extra keys give its id, and the chunks before it are its chain. A chunk that the prompt ends
// inside does not match. Cost: one SHA-256 over the tokens. `extra_keys` are the prompt's, sorted,
// counted from its first token. `key` is that of the corpus' tenant; chunks with plain ids match
// whatever it is.
PromptMatch MatchPrompt(const Corpus& corpus, std::span<const int32_t> tokens,
                        const TenantKey& key = {}, std::span<const ExtraKey> extra_keys = {});

}  // namespace ckv
