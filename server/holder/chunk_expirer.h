// Ends the marks and the chunks of a store whose time is over.

#pragma once

#include <cstddef>

#include "server/side_thread.h"
#include "store/chunk_store.h"

namespace ckv {

// On a thread of its own: each chunk is a removal of two files, and a device that hangs must not
// hold the thread that tells the world this process lives. Tick belongs to one thread.
class ChunkExpirer {
 public:
  // Of one round. Ticks come every 100 ms, so that 640 chunks a second can end.
  static constexpr size_t kCountMax = 64;

  // `store` must outlive it.
  explicit ChunkExpirer(ChunkStore* store) : store_(*store), thread_([] {}) {}

  // Begins a round if something is due and none is under way. Waits for no device.
  void Tick() {
    if (thread_.finished()) thread_.Collect();
    if (!thread_.idle() || !store_.table().NextExpired()) return;
    thread_.Start([this] { store_.Expire(kCountMax); });
  }

 private:
  ChunkStore& store_;
  SideThread thread_;
};

}  // namespace ckv
