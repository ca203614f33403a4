#include "client/paged/timing_values.h"

#include <cstring>

namespace ckv {
namespace {

constexpr uint32_t kQuerySeed = 0xffffffffu;

// A linear congruential generator (Knuth, "The Art of Computer Programming" 2, 3.3.4). Its upper
// bits are random enough for products that differ.
class Words {
 public:
  explicit Words(uint32_t seed) : state_(seed * 2654435761u + 1) {}

  uint16_t Next(RowDtype dtype) {
    state_ = state_ * 1664525u + 1013904223u;
    const uint32_t random = state_ >> 16;
    // The sign, and exponents of bf16 of 2^-5 to 2^0, whose lowest bit is in the lower byte.
    const uint32_t high = 0x3d + (random >> 8) % 3;
    const uint32_t low = dtype == RowDtype::kBf16 ? random & 0xffu : (random & 0x87u) | 0x30u;
    return static_cast<uint16_t>((random & 0x8000u) | high << 8 | low);
  }

 private:
  uint32_t state_;
};

}  // namespace

void FillTimingValues(std::span<std::byte> bytes, uint32_t seed, RowDtype dtype) {
  Words words(seed);
  for (size_t i = 0; i + sizeof(uint16_t) <= bytes.size(); i += sizeof(uint16_t)) {
    const uint16_t word = words.Next(dtype);
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
}

std::vector<uint16_t> TimingQueries(size_t rows, size_t width) {
  std::vector<uint16_t> values(rows * width);
  FillTimingValues(std::as_writable_bytes(std::span(values)), kQuerySeed);
  return values;
}

}  // namespace ckv
