// The bytes that calls of one kind may hold at once.

#pragma once

#include <atomic>
#include <cstdint>

namespace ckv {

// Thread-safe.
class MemoryQuota {
 public:
  explicit MemoryQuota(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  MemoryQuota(const MemoryQuota&) = delete;
  MemoryQuota& operator=(const MemoryQuota&) = delete;

  uint64_t bytes_max() const { return bytes_max_; }

  // Takes `bytes`, or none. Returns whether there was room.
  bool Take(uint64_t bytes) {
    uint64_t taken = taken_.load(std::memory_order_relaxed);
    do {
      if (bytes > bytes_max_ - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
    return true;
  }
  // Gives back what was taken.
  void Give(uint64_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  const uint64_t bytes_max_;
  std::atomic<uint64_t> taken_{0};
};

}  // namespace ckv
