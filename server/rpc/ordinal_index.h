// Finds chunks of a corpus by id, for calls that name chunks by id.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "proto/corpus.h"
#include "proto/ids.h"

namespace ckv {

// The ordinals of one snapshot's chunks. Immutable. Takes about 48 bytes a chunk.
class OrdinalIndex {
 public:
  explicit OrdinalIndex(const Corpus& corpus);
  // Returns the ordinal of the chunk, or nothing if the corpus does not have it.
  std::optional<uint32_t> Find(const ChunkId& id) const;

 private:
  absl::flat_hash_map<ChunkId, uint32_t> ordinals_;
};

// Thread-safe. Makes each snapshot's index once, so the cost of a call depends on the chunks it
// names, not on the size of the corpus. Keeps the indices of the kCorpusCountMax most recently used
// snapshots.
class OrdinalIndices {
 public:
  static constexpr size_t kCorpusCountMax = 16;
  std::shared_ptr<const OrdinalIndex> For(const std::shared_ptr<const Corpus>& corpus)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::weak_ptr<const Corpus> corpus;
    std::shared_ptr<const OrdinalIndex> index;
  };
  absl::Mutex mu_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);  // the most recently used first
};

}  // namespace ckv
