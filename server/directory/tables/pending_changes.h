// The changes that are submitted and not settled yet: at most one per corpus.
//
//   state      from                                until
//   pending    its number is assigned (Add)        Take
//   settled    the journal's answer (Take)         the caller has read `status` and `orphans`
//
// Changes to one corpus are sequential: the next one waits until none is pending.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "proto/corpus.h"
#include "server/directory/tables/change_numbers.h"
#include "server/directory/tables/corpus_key.h"

namespace ckv {

struct PendingChange {
  bool is_rebuilt = false;   // rebuilt from reports; no caller waits for it
  uint64_t added_count = 0;  // chunks that it adds, at most
  bool is_new = false;       // no version of the corpus exists yet
  uint64_t number = 0;       // the version or number of the change
  uint64_t term = 0;         // Leadership::term when it was checked
  bool is_settled = false;
  absl::Status status;
  std::vector<ChunkPlacement> orphans;
};

// Not thread-safe: its owner's lock guards it.
class PendingChanges {
 public:
  bool Has(const CorpusKey& key) const { return pending_.contains(key); }
  // Returns the pending change of this corpus, or null.
  const PendingChange* Find(const CorpusKey& key) const;
  // Call only if no change of this corpus is pending.
  void Add(const CorpusKey& key, std::shared_ptr<PendingChange> change);
  // Removes the pending change of this corpus and returns it. There must be one.
  std::shared_ptr<PendingChange> Take(const CorpusKey& key);

  // Returns how many corpora the pending changes add.
  uint64_t NewCorpusCount() const;
  // Returns how many chunks they add, at most.
  uint64_t AddedChunkCount() const;
  // Returns the highest number up to which all changes are applied. Changes become durable in
  // another order than they are numbered.
  uint64_t AppliedUpTo(const ChangeNumbers& numbers) const;

 private:
  std::map<CorpusKey, std::shared_ptr<PendingChange>> pending_;
};

}  // namespace ckv
