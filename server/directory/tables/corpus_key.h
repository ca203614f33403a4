// How the directory's tables name a corpus.

#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "proto/corpus.h"

namespace ckv {

using CorpusKey = std::pair<std::string, std::string>;  // tenant, name

inline CorpusKey KeyOf(const Corpus& corpus) { return {corpus.tenant, corpus.name}; }

// Sorted by key, so that a run replays (I8).
using CorporaByKey = std::map<CorpusKey, std::shared_ptr<const Corpus>>;

}  // namespace ckv
