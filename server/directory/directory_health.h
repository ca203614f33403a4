// The facts of the fleet's health: the members, and the chunks and copies that corpora lack.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/health/facts.h"
#include "server/directory/coverage/coverage.h"
#include "server/directory/directory_tables.h"

namespace ckv {

// Thread-safe. One walk over the corpora serves all callers until the state changes.
class DirectoryHealth {
 public:
  // `tables` must outlive this object.
  explicit DirectoryHealth(DirectoryTables* tables) : tables_(*tables) {}

  // Returns the facts of the fleet's health, except those of the directory's folder. After a
  // change, walks over the corpora with a holder that is offline or lacks chunks.
  FleetFacts Facts() ABSL_LOCKS_EXCLUDED(tables_.mu, walk_mu_);
  // Returns the counts over all corpora, for metrics.
  std::shared_ptr<const Coverage> Covered() ABSL_LOCKS_EXCLUDED(tables_.mu, walk_mu_);
  // Records whether the member, if still of this epoch, responded to a probe of its address.
  void NoteProbe(const Member& member, const absl::Status& answer) ABSL_LOCKS_EXCLUDED(tables_.mu);

 private:
  CoverageView View() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  DirectoryFacts FactsOfDirectory(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);

  DirectoryTables& tables_;
  // Held during the walk over corpora: callers that arrive at the same time share one walk.
  absl::Mutex walk_mu_ ABSL_ACQUIRED_BEFORE(tables_.mu);
  // The last walk, and the change count before it.
  std::shared_ptr<const Coverage> covered_ ABSL_GUARDED_BY(walk_mu_);
  uint64_t covered_at_ ABSL_GUARDED_BY(walk_mu_) = 0;
};

}  // namespace ckv
