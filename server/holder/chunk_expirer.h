// Removes marks and chunks of a store when their time is over.

#pragma once

#include <cstddef>

#include "server/dispatch/side_thread.h"
#include "store/chunk_store.h"

namespace ckv {

// Works on a thread of its own, because each chunk takes the removal of two files. A device that
// hangs must not hold up the daemon's ticks, which show that the process lives. Tick belongs to
// one thread.
class ChunkExpirer {
 public:
  // Chunks that one round removes at most. With a tick every 100 ms, that is 640 chunks a second.
  static constexpr size_t kCountMax = 64;

  // `store` must outlive the expirer.
  explicit ChunkExpirer(ChunkStore* store) : store_(*store), thread_([] {}) {}

  // Starts a round if something is due and no round is under way. Returns at once.
  void Tick() {
    if (thread_.finished()) thread_.Collect();
    if (!thread_.idle() || !store_.table().ledger().AnyDue()) return;
    thread_.Start([this] { store_.Expire(kCountMax); });
  }

 private:
  ChunkStore& store_;
  SideThread thread_;
};

}  // namespace ckv
