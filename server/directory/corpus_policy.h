// The rules of a corpus' policy (CorpusPolicy): what a publication inherits, when the ttl ends, the
// quota, and which versions are kept. Pure functions.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "proto/corpus.h"
#include "server/directory/tables/corpus_key.h"

namespace ckv {

// Sets the fields of `next.policy` that are unset, from `current` if that is not null. Fields that
// are 0 are unset then. The ttl begins again if the chunks or the ttl change. A new place of a
// chunk, or another copy of it, does not prolong a corpus. `now_ms` is the wall clock in
// milliseconds since 1970.
void SettlePolicy(const Corpus* current, uint64_t now_ms, Corpus& next);

// Returns true if `next` lacks a chunk of `current`.
bool LacksChunks(const Corpus& current, const Corpus& next);

// Returns the kept versions of the corpus `key`, the latest first.
std::vector<std::shared_ptr<const Corpus>> KeptVersionsOf(const CorporaByKey& corpora,
                                                          const CorpusKey& key);

// Returns the corpus that keeps `current` when a later version replaces it. It has the ttl of
// `current`, which begins when it is replaced, and no quota.
Corpus KeptVersionFrom(const Corpus& current);

}  // namespace ckv
