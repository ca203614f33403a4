// Chooses which of the traces that begin here are sampled: one in so many.

#pragma once

#include <atomic>
#include <cstdint>
#include <random>

namespace ckv {

// Thread-safe.
class TraceSampler {
 public:
  // If `one_in` is 0, none is.
  explicit TraceSampler(uint32_t one_in) : one_in_(one_in), count_(std::random_device{}()) {}

  bool Sample() {
    return one_in_ != 0 && count_.fetch_add(1, std::memory_order_relaxed) % one_in_ == 0;
  }

 private:
  const uint32_t one_in_;
  std::atomic<uint64_t> count_;  // begins anywhere, or each first call would be sampled
};

}  // namespace ckv
