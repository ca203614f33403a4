// A list of memory spans that together receive one sequence of bytes.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace ckv {

// Borrowed spans of memory, in the order of the bytes. No span is empty.
class ScatterList {
 public:
  // One transfer is 224 rows of 1152 bytes, in at most 5 blocks of 64 rows of a cache, or 384 fp8
  // rows in 7. With a head before the spans and a page after them, one system call with 8 parts can
  // read 6 spans. For a call with more parts the kernel allocates its copy of the list. Rows in
  // more spans are copied from the slot: 512 blocks of 16 rows arrived no later for it over tcp.
  static constexpr size_t kSpanCountMax = 6;

  ScatterList() = default;
  explicit ScatterList(std::span<std::byte> span) { Add(span); }

  // Appends a span. Returns false if the list is full. TakeFront makes no room for more spans.
  bool Add(std::span<std::byte> span) noexcept {
    if (span.empty()) return true;
    if (end_ == kSpanCountMax) return false;
    spans_[end_++] = span;
    return true;
  }

  // Removes the first `bytes` bytes from the list, at most bytes(), and returns them.
  ScatterList TakeFront(size_t bytes) noexcept {
    ScatterList front;
    while (bytes > 0 && !empty()) {
      std::span<std::byte>& span = spans_[begin_];
      const size_t taken = std::min(bytes, span.size());
      front.Add(span.first(taken));
      span = span.subspan(taken);
      if (span.empty()) ++begin_;
      bytes -= taken;
    }
    return front;
  }

  bool empty() const noexcept { return begin_ == end_; }
  std::span<const std::span<std::byte>> spans() const noexcept {
    return std::span(spans_).subspan(begin_, end_ - begin_);
  }
  size_t bytes() const noexcept {
    size_t bytes = 0;
    for (const std::span<std::byte> span : spans()) bytes += span.size();
    return bytes;
  }

 private:
  std::array<std::span<std::byte>, kSpanCountMax> spans_;
  size_t begin_ = 0, end_ = 0;
};

}  // namespace ckv
