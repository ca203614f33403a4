#include "client/bindings/ggml/visible_cells.h"

#include <cstring>

#include "absl/strings/str_format.h"

namespace ckv::ggml {
namespace {

constexpr uint16_t kSeen = 0x0000, kMinusZero = 0x8000, kHidden = 0xfc00;  // 0, -0 and -inf in f16
constexpr uint32_t kWordValues = 4;

uint64_t WordOf(uint16_t value) { return value * 0x0001000100010001u; }

// The first value from `at` on that is not `value`, or cell_count.
uint32_t Skip(const uint16_t* mask, uint32_t cell_count, uint32_t at, uint16_t value) {
  const uint64_t same = WordOf(value);
  for (uint64_t word; at + kWordValues <= cell_count; at += kWordValues) {
    std::memcpy(&word, mask + at, sizeof(word));
    if (word != same) break;
  }
  while (at < cell_count && mask[at] == value) ++at;
  return at;
}

}  // namespace

absl::Status AppendVisible(const uint16_t* mask, uint32_t cell_count,
                           std::vector<CellRange>& ranges) {
  if (mask == nullptr) {
    if (cell_count > 0) ranges.push_back({0, cell_count});
    return absl::OkStatus();
  }
  bool open = false;  // the last range is this mask's and ends at `at`
  for (uint32_t at = 0; at < cell_count;) {
    const uint16_t value = mask[at];
    if (value == kHidden) {
      open = false;
      at = Skip(mask, cell_count, at, kHidden);
      continue;
    }
    if (value != kSeen && value != kMinusZero) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the mask has %#x for cell %d, and ckv supports only 0 and -inf", value, at));
    }
    const uint32_t end = Skip(mask, cell_count, at, value);
    if (open) {
      ranges.back().end = end;
    } else {
      ranges.push_back({at, end});
    }
    open = true;
    at = end;
  }
  return absl::OkStatus();
}

}  // namespace ckv::ggml
