#include "client/paged/timing_values.h"

#include <cstring>

namespace ckv {
namespace {

// A linear congruential generator (Knuth, "The Art of Computer Programming" 2, 3.3.4). Its upper
// bits are random enough for products that differ.
struct Words {
  uint32_t state = 1;

  uint16_t Next() {
    state = state * 1664525u + 1013904223u;
    const uint32_t random = state >> 16;
    // Sign, then exponents of 2^-5 to 2^0. The lower byte is no NaN of e4m3: bit 0 is clear.
    const uint32_t high = 0x3d + (random >> 8) % 3;
    return static_cast<uint16_t>((random & 0x8000u) | high << 8 | (random & 0xfeu));
  }
};

}  // namespace

void FillTimingValues(std::span<std::byte> bytes) {
  Words words;
  for (size_t i = 0; i + sizeof(uint16_t) <= bytes.size(); i += sizeof(uint16_t)) {
    const uint16_t word = words.Next();
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
}

std::vector<uint16_t> TimingValues(size_t count) {
  std::vector<uint16_t> values(count);
  FillTimingValues(std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace ckv
