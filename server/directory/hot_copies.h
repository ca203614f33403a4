// The leased copies that the directory had made because holders were past their elbow.
//
//   a copy      from                                        until
//   ordered     Replication plans it (hot_plan.h)           its holder reports it as made
//   announced   Announce: corpora list it as leased         its sources were below their elbow for
//                                                           kHold, or the holder's lease ends
//
// None of this is durable. A directory that begins to lead orders what is hot then.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "proto/base/clock.h"
#include "server/directory/directory_tables.h"
#include "server/directory/replication/copy_plan.h"
#include "server/directory/replication/hot_plan.h"

namespace ckv {

// Not thread-safe: its owner's lock guards it. The tables' lock guards them.
class HotCopies {
 public:
  // How long a copy stays after its sources were last past their elbow.
  static constexpr Duration kHold = std::chrono::minutes(10);
  // Chunks that one plan considers.
  static constexpr size_t kChunkCountMax = 1024;

  // Whether a holder is past its elbow, or copies are announced: then plan again soon.
  bool IsWaiting(const DirectoryTables& tables) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables.mu);
  // Returns what holders report as hot, with the runs around it.
  HotPlanView View(const DirectoryTables& tables, const CopyPlanView& view) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables.mu);
  // A member under this lease has made a copy: corpora list it from now on.
  void Announce(DirectoryTables& tables, const HolderId& holder, uint64_t lease_id,
                const std::string& tenant, const ChunkId& id, Instant now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables.mu);
  // Withdraws the copies that are not needed any more.
  void WithdrawCool(DirectoryTables& tables, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables.mu);
  void Forget() { copies_.clear(); }

 private:
  using Key = std::tuple<uint64_t, std::string, ChunkId>;  // lease, tenant
  std::map<Key, Instant> copies_;                          // since when each is not needed
};

}  // namespace ckv
