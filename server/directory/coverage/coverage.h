// Counts the chunks and copies that corpora place and that no live holder has.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "proto/corpus.h"
#include "proto/health/facts.h"
#include "server/directory/coverage/lacking_chunks.h"

namespace ckv {

// A snapshot of the directory. It is read without the directory's lock.
struct CoverageView {
  using Lacking = std::map<HolderId, std::shared_ptr<const LackingChunks::Chunks>>;
  // The live holders, and the chunks that holders lack.
  struct Holders {
    absl::flat_hash_set<HolderId> live;
    Lacking lacking;

    bool Has(const HolderId& holder, const ChunkId& id) const {
      return live.contains(holder) && !Lacks(holder, id);
    }
    bool Lacks(const HolderId& holder, const ChunkId& id) const {
      if (lacking.empty()) return false;
      const auto found = lacking.find(holder);
      return found != lacking.end() && found->second->contains(id);
    }
  };
  struct Entry {
    std::shared_ptr<const Corpus> corpus;
    // Ordinals, ascending, of the chunks that members announced under their leases.
    std::vector<uint32_t> leased;
  };
  // The corpora that have a place on a holder without a lease, or on one that lacks chunks. All
  // other corpora are whole.
  std::vector<Entry> corpora;
  Holders holders;
};

struct Coverage {
  std::vector<CorpusFacts> corpora;  // corpora that lack something, those with missing chunks first
  struct OfHolder {
    uint64_t lacking_count = 0;  // places whose chunk it lacks
    uint64_t sole_count = 0;     // those whose chunk no other live member has
  };
  std::map<HolderId, OfHolder> holders;
  uint64_t missing_chunk_count = 0;  // over all examined corpora
  uint64_t missing_copy_count = 0;
  // Corpora without a report in `corpora`, which may be whole or not. They exceed
  // kCoverageChunkCountMax chunks in all and were not examined, or are beyond the first
  // kCoverageCorpusCountMax that lack something.
  uint64_t skipped_corpus_count = 0;
};
inline constexpr uint64_t kCoverageChunkCountMax = uint64_t{1} << 20;
// The limit of corpora reported by name. The counts include all examined corpora.
inline constexpr size_t kCoverageCorpusCountMax = 256;

Coverage Cover(const CoverageView& view);

// Removes the holders that lack the chunk from `chunk`, if a live holder or a leased member has it.
// Returns true if that changed `chunk`.
bool LeaveOutLacking(const CoverageView::Holders& holders, ChunkPlacement& chunk);

}  // namespace ckv
