// How much of a document a corpus has.

#pragma once

#include <cstdint>
#include <span>

#include "proto/corpus.h"
#include "proto/ids.h"

namespace ckv::ctl {

// Returns how many of `tokens`, from the first on, chunks of `corpus` have as a chain that begins
// at position 0. `key` is of the corpus' tenant. Ids are made anew from the tokens, so nothing but
// these tokens counts. The longer one of two chunks that fit at a place is
// followed.
uint64_t CoveredTokens(const Corpus& corpus, const TenantKey& key, std::span<const int32_t> tokens);

}  // namespace ckv::ctl
