// The holders that a restarted directory waits for.

#pragma once

#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "server/directory/tables/placed_corpora.h"

namespace ckv {

// A holder is missing from the start of the directory until it registers, if replayed corpora name
// it. A holder is reporting from its registration until its last part is reported, or its lease
// ends. Not thread-safe: its owner's lock guards it.
class ReturningHolders {
 public:
  // The holders of these corpora are missing. After `until` the directory waits no longer for them.
  void Start(const PlacedCorpora& corpora, Instant until);
  void NoteRegistered(const HolderId& holder) { missing_.erase(holder); }
  void NoteReporting(const HolderId& holder) { reporting_.insert(holder); }
  void EndReporting(const HolderId& holder) { reporting_.erase(holder); }
  bool IsReporting(const HolderId& holder) const { return reporting_.contains(holder); }

  // Returns, by name, the missing holders that `corpora` still name, and the reporting ones.
  // Forgets the other missing ones.
  std::vector<HolderId> List(const PlacedCorpora& corpora);
  //   Unavailable         a holder is missing, and the directory still waits for it.
  absl::Status Check(Instant now) const;

 private:
  absl::btree_set<HolderId> missing_;
  absl::btree_set<HolderId> reporting_;
  Instant until_;
};

}  // namespace ckv
