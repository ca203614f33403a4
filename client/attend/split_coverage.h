// Counts merged partials, so that an answer covers every requested (chunk, row) exactly once (I1).

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace ckv {

// The record of one call. Rows are merged in blocks. Each block awaits KV splits, which together
// contain all of its chunks. Not thread-safe. Keeps its memory between calls.
class SplitCoverage {
 public:
  // Starts a call. It has no blocks.
  void Begin();
  // Adds the next block. It awaits `split_count` splits with `chunk_count` chunks in total.
  void AddBlock(uint32_t split_count, uint32_t chunk_count);

  // Call when a split of a block arrives, with `chunk_count` chunks. After an error the call must
  // fail.
  //   Internal            the split arrived before, or it is not part of this call.
  absl::Status Cover(uint32_t block, uint32_t split, uint32_t chunk_count);

  // Checks that every chunk of the block was covered once.
  //   Internal            some chunk was not.
  absl::Status CheckBlock(uint32_t block) const;
  // Checks every block.
  //   Internal            names the first incomplete block.
  absl::Status CheckComplete() const;

 private:
  struct Block {
    uint32_t split_begin = 0, split_end = 0;  // in came_
    uint32_t chunk_count = 0;
    uint64_t covered = 0;
  };
  std::vector<Block> blocks_;
  std::vector<bool> came_;
};

}  // namespace ckv
