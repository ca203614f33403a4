// The time within which a holder answers nearly all rounds of a size, to notice one that is late.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "proto/base/clock.h"

namespace ckv {

// Estimates the 95th percentile of the times of rounds, for each size class. A round is the part of
// a call that one holder answers. Its size is the number of pairs of a query row and a row that it
// attends. Sizes within a power of two share a class.
//
// The estimate moves up by 19 parts for a longer round and down by 1 part for a shorter one. So it
// rests where 5 of 100 are longer. A part is a factor, so that one round of a stopped holder counts
// as any other long one.
//
// Thread-safe and lock-free. Threads that observe at the same time may lose a step.
class RoundTimes {
 public:
  // Rounds of a class before its estimate is used.
  static constexpr uint32_t kCountMin = 32;

  void Observe(uint64_t pairs, Duration took);
  // Unset if too few rounds of the class were observed.
  std::optional<Duration> P95(uint64_t pairs) const;

 private:
  struct Class {
    std::atomic<uint32_t> count{0};  // up to kCountMin
    std::atomic<float> log2_ns{0};
  };
  static constexpr size_t kClassCount = 65;  // by the bit width of a size

  std::array<Class, kClassCount> classes_;
};

}  // namespace ckv
