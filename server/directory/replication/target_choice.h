// Chooses the holders that copies go to.
//
// Rendezvous hashing with weights: each holder has a score for each run of chunks, and the highest
// wins. A holder that comes or goes changes only the runs that it wins. Holders with twice the
// capacity win twice as many runs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "server/directory/replication/copy_plan.h"
#include "server/directory/tables/corpus_key.h"

namespace ckv {

// Returns how many chunks of a corpus of this size go to one holder together. It is a power of two,
// so that they are a subtree of the fixed merge tree. A corpus has at most 128 runs.
uint32_t CopyRunChunks(size_t chunk_count);

// Returns the score of a holder for a run of chunks, above 0.
double ScoreOf(const HolderId& holder, uint64_t capacity_bytes, const CorpusKey& corpus,
               uint32_t run);

// Ranks targets for the chunks of one corpus after another. Not thread-safe.
class TargetChoice {
 public:
  // `live` must outlive this object.
  explicit TargetChoice(const std::vector<CopyHolder>& live) : live_(live) {}

  // Returns indices into `live` of all holders that are neither drained nor in `taken`, the best
  // first. The best are farthest from `taken`; of equals, those with the highest score are first.
  // Valid until the next call.
  const std::vector<size_t>& Rank(const CorpusKey& corpus, uint32_t run,
                                  const std::vector<size_t>& taken);

 private:
  std::vector<size_t> Compute(const CorpusKey& corpus, uint32_t run,
                              const std::vector<size_t>& taken) const;

  const std::vector<CopyHolder>& live_;
  // The ranks of the last run: most of its chunks have the same holders.
  CorpusKey corpus_;
  uint32_t run_ = 0;
  std::map<std::vector<size_t>, std::vector<size_t>> ranks_;
};

}  // namespace ckv
