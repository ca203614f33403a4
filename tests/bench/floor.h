// Denominators of a benchmark's figures: the machine's own limits, sampled next to each call.
//
// Shared machines have slow states (a busy neighbour takes 5 % of a register loop and 35 % of a
// kernel), so a limit is never measured once and kept: every sample of a kernel has a sample of its
// limit a millisecond before it, the ratio is taken pair by pair, and the median of the ratios is
// the figure.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ckv::bench {

inline double SecondsOf(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values);

enum class FmaWidth { kWidest, kAvx2 };

// fp32 flop per second of this thread, all in registers: 24 (AVX-512) or 12 (AVX2) independent
// chains of FMA, three times what two 4-cycle pipes need. One sample of some 0.2 ms.
double FmaRate(FmaWidth width = FmaWidth::kWidest);

// Takes `memory` out of every cache, where the processor can.
void Flush(std::span<const std::byte> memory);

// Bytes per second at which this thread reads `memory` once, in order.
double ReadRate(std::span<const std::byte> memory);

// Bytes read plus bytes written per second of a memcpy.
double CopyRate(std::span<std::byte> to, std::span<const std::byte> from);

// Bytes read plus bytes written per second of a loop that reads `piece_bytes` at every
// `stride_bytes` and writes them back, two lines of work and no arithmetic.
double TouchRate(std::span<std::byte> memory, size_t piece_bytes, size_t stride_bytes);

// Memory on huge pages if the machine has them, all of it touched. A kernel reads a store's arena;
// with 4 KiB pages a gather of 1152-byte rows would time the page walk.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace ckv::bench
