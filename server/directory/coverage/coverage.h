// Counts the chunks and copies that corpora place and that no live holder has.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "proto/corpus.h"
#include "proto/health/facts.h"
#include "server/directory/coverage/lack_table.h"

namespace ckv {

// A moment of the directory. It is looked at without the directory's lock.
struct CoverageView {
  using Lacking = std::map<HolderId, std::shared_ptr<const LackTable::Chunks>>;
  // Who is there, and what they lack.
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
    // Ordinals of chunks that members announced under their leases, in their order.
    std::vector<uint32_t> leased;
  };
  // The corpora that a holder without a lease has a place in, or one that lacks chunks. All others
  // are whole.
  std::vector<Entry> corpora;
  Holders holders;
};

struct Coverage {
  std::vector<CorpusFacts> corpora;  // those that lack something
  struct OfHolder {
    uint64_t lacking_count = 0;  // places that it lacks
    uint64_t sole_count = 0;     // those of them that no other live holder has
  };
  std::map<HolderId, OfHolder> holders;
  uint64_t missing_chunk_count = 0;  // over all corpora
  uint64_t missing_copy_count = 0;
  // Corpora of which nothing is told: beyond kCoverageChunkCountMax chunks in all, or beyond
  // kCoverageCorpusCountMax that lack something. `corpora` lacks them; they may be whole or not.
  uint64_t skipped_corpus_count = 0;
};
inline constexpr uint64_t kCoverageChunkCountMax = uint64_t{1} << 20;
// Corpora that are told by name; the counts have all.
inline constexpr size_t kCoverageCorpusCountMax = 256;

Coverage Cover(const CoverageView& view);

// Leaves out the holders that lack the chunk, if somebody else has it: a live holder or a leased
// member. Returns true if that changed it.
bool LeaveOutLacking(const CoverageView::Holders& holders, ChunkPlacement& chunk);

}  // namespace ckv
