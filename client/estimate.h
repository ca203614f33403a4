// The decision on live constants alone: Requester::Estimate's question and its answers.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "attention/partial.h"
#include "client/cost/predicate.h"
#include "proto/corpus.h"

namespace ckv {

// Borrowed until Estimate returns.
struct EstimateCall {
  std::shared_ptr<const Corpus> corpus;
  // Ordinals in the corpus, each at most once. If there are none, all chunks of the corpus.
  std::span<const uint32_t> chunks = {};
  uint32_t query_rows = 1;  // M_q of one request: tokens x heads
  uint32_t steps = 1;       // decode steps; 0 counts as 1
  uint32_t agents = 1;      // agents that share the chunks here; 0 counts as 1
  uint32_t select = 0;      // rows a query attends of each group; 0 means all
  PartialDtype wire = PartialDtype::kBf16;
  // The engine would keep fetched rows in its own cache at other positions than the chunks' own, so
  // a fetch rotates each of them (Requester::FetchInto). If false, rows stay at their positions and
  // queries are rotated, which costs nothing.
  bool spliced = false;
};

// The costs at this requester of those chunks of a call that have the same holders.
struct GroupEstimate {
  // Members that hold all of these chunks: the ones of this chunk of the corpus, first its
  // `holders`, then its `leased`. `decision`'s candidates count them.
  uint32_t first_chunk = 0;
  uint32_t chunk_count = 0;
  uint64_t tokens = 0;
  uint64_t cached_tokens = 0;  // the part of `tokens` that is cached here
  // If a constant is not known yet, nothing is chosen, and each cost says why_not.
  // Requester::Explain measures all constants, and so does a context of policy auto.
  Decision decision;
};

}  // namespace ckv
