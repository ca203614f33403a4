// The load of a holder as its dispatcher notes it: the times of batches, and some of the chunks
// that attends read.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/ids.h"
#include "store/memory/chunk_table.h"

namespace ckv {

// Sums over batches of `n` attends that took `t` microseconds each, for a fit of t = fixed + n *
// marginal. Since the start; they wrap around.
struct BatchSums {
  uint64_t batch_count = 0;
  uint64_t n = 0, t = 0, nn = 0, nt = 0;

  friend BatchSums operator-(const BatchSums& a, const BatchSums& b) {
    return {a.batch_count - b.batch_count, a.n - b.n, a.t - b.t, a.nn - b.nn, a.nt - b.nt};
  }
};

// The load of a window of time, as server/health/elbow_meter.h finds it.
struct HolderLoad {
  bool is_past_elbow = false;
  double elbow = 0;      // attends in a batch; 0 as long as it is not known
  double attends = 0;    // in a batch of the window, on average
  double busy_part = 0;  // busy time in the window, from 0 to 1
  // The chunks that most of the sampled attends read, the first the most, if it is past its elbow.
  std::vector<ChunkId> hot;
};

// Written by the dispatcher's thread, read by any thread.
class LoadSamples {
 public:
  // One of so many pieces is sampled: a piece takes microseconds, and a sample 20 ns.
  static constexpr uint32_t kPiecePeriod = 64;
  static constexpr size_t kChunkCount = 256;

  void NoteBatch(uint64_t n, uint64_t us) {
    Add(sums_[0], 1);
    Add(sums_[1], n);
    Add(sums_[2], us);
    Add(sums_[3], n * n);
    Add(sums_[4], n * us);
  }
  // Whether the next piece is in the sample.
  bool IsPieceDue() { return ++piece_count_ % kPiecePeriod == 0; }
  void NoteChunk(ChunkLocator chunk) {
    // No chunk is 0, which is an empty place.
    chunks_[next_++ % kChunkCount].store((uint64_t{chunk.slot} + 1) << 32 | chunk.generation,
                                         std::memory_order_relaxed);
  }

  // Returns the sums, read one by one: they may differ by a batch.
  BatchSums sums() const {
    const auto read = [this](size_t i) { return sums_[i].load(std::memory_order_relaxed); };
    return {read(0), read(1), read(2), read(3), read(4)};
  }
  // Returns the sampled chunks since the last call, the last kChunkCount at most, in no order. A
  // chunk that was sampled twice is there twice.
  std::vector<ChunkLocator> TakeChunks() {
    std::vector<ChunkLocator> taken;
    for (std::atomic<uint64_t>& place : chunks_) {
      const uint64_t chunk = place.exchange(0, std::memory_order_relaxed);
      if (chunk == 0) continue;
      taken.push_back({static_cast<uint32_t>((chunk >> 32) - 1), static_cast<uint32_t>(chunk)});
    }
    return taken;
  }

 private:
  static void Add(std::atomic<uint64_t>& sum, uint64_t by) {
    sum.store(sum.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

  std::array<std::atomic<uint64_t>, 5> sums_{};
  std::array<std::atomic<uint64_t>, kChunkCount> chunks_{};
  uint32_t piece_count_ = 0, next_ = 0;  // used by the dispatcher's thread
};

}  // namespace ckv
