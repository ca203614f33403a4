// What both wire tests write frames into.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/wire.h"

namespace ckv::test {

// 64-byte aligned, as slots are.
class Slot {
 public:
  explicit Slot(size_t bytes) : words_((bytes + 63) / 64 + 1), bytes_(bytes) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words_)).first(bytes_); }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64] = {};
  };
  std::vector<Line> words_;
  size_t bytes_;
};

inline RequestHeader AttendHeader() {
  RequestHeader header;
  header.kind = WireKind::kAttend;
  header.request_id = 0x1122334455667788;
  header.epoch = 5;
  header.session = 6;
  header.deadline_us = 1000;
  header.row_count = 5;
  header.layer = 3;
  header.copy_count = 2;
  header.piece_count = 2;
  header.index_count = 9;
  return header;
}

}  // namespace ckv::test
