// The chunks that corpora do not place on this holder any more: they are dropped after a while.
//
//   a chunk   from                                           until
//   left      a later version of its corpus places it        nobody requested it for
//             elsewhere, or the corpus was dropped           LeftChunksOptions::drop_after
//   checked   the directory says that no corpus places it    it is dropped, or stays because it is
//             here                                           kept, pinned or in use
//
// A chunk is left only if the same state of a directory (folder_id) placed it here before. A
// directory that lost its corpora places nothing, and that is no reason to drop anything. A chunk
// that was left when the process ended is not remembered: ckvctl gc finds it.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/ids.h"

namespace ckv {

struct LeftChunksOptions {
  std::string name;  // the holder's name, for the log
  // If 0, nothing is dropped. A load that finds a chunk here asks for it once more before it
  // publishes; this must be longer than the time between the two.
  Duration drop_after = std::chrono::hours(1);
};

// Not thread-safe: its owner's thread uses it.
class LeftChunks {
 public:
  // The most chunks that wait. Later ones are left to ckvctl gc.
  static constexpr size_t kCountMax = size_t{1} << 20;

  // Returns how many corpora place each chunk here. At most kIdsPerCallMax ids.
  using Count = std::function<absl::StatusOr<std::vector<uint32_t>>(std::span<const ChunkId> ids)>;
  // Drops a chunk without a request for it during `idle_min`. Errors as ChunkStore::Drop.
  using Drop = std::function<absl::Status(const ChunkId& id, Duration idle_min)>;

  explicit LeftChunks(const LeftChunksOptions& options) : options_(options) {}

  // As Add, for leased copies, which are left once they are withdrawn. One that is still listed
  // here when it is due is checked again later.
  void AddLeased(std::vector<ChunkId> ids, uint64_t folder_id, Instant now) {
    AddBatch(std::move(ids), folder_id, now, /*is_leased=*/true);
  }
  // The ids left at `now`, under a directory with this folder. Those of other folders are
  // forgotten.
  void Add(std::vector<ChunkId> ids, uint64_t folder_id, Instant now) {
    AddBatch(std::move(ids), folder_id, now, /*is_leased=*/false);
  }
  // When DropDue has something to do; kInstantMax if nothing waits.
  Instant due() const { return waiting_.empty() ? kInstantMax : waiting_.front().due; }
  // Checks and drops the next chunks that are due, at most kIdsPerCallMax. Returns how many it
  // dropped.
  //   `count`'s error; the chunks are due again.
  absl::StatusOr<uint64_t> DropDue(uint64_t folder_id, Instant now, const Count& count,
                                   const Drop& drop);
  size_t size() const { return size_; }

 private:
  struct Batch {
    Instant due;
    std::vector<ChunkId> ids;  // at most kIdsPerCallMax
    bool is_leased = false;
  };
  void AddBatch(std::vector<ChunkId> ids, uint64_t folder_id, Instant now, bool is_leased);

  const LeftChunksOptions options_;
  uint64_t folder_id_ = 0;
  std::deque<Batch> waiting_;  // by `due`
  size_t size_ = 0;            // chunks in `waiting_`
};

}  // namespace ckv
