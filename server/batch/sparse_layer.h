// Address space for one layer of a chunk, of which only some stripes have memory. Kernels want a
// layer as one array; a selection needs some stripes of it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/chunk_rows.h"

namespace ckv {

// Pages of a layer, counted from its first byte.
struct PageRange {
  uint64_t begin = 0, end = 0;
  uint64_t count() const { return end > begin ? end - begin : 0; }
};

struct LayerShape {
  uint32_t token_count = 0;
  uint64_t row_bytes = 0;

  uint64_t bytes() const { return token_count * row_bytes; }
  // The pages that have bytes of this stripe. Neighbours share a page unless stripes are whole
  // pages, as those of 1152-byte rows are (9 pages).
  PageRange PagesOf(uint32_t stripe) const;
};

// Movable. A page takes memory from the first Read into it until Free or the end of this object.
// Pages stay small: a huge one would take 2 MiB for a stripe of 36 KiB.
class SparseLayer {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr uint64_t WholePages(uint64_t bytes) {
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  }

  //   ResourceExhausted   the system has no address space for it.
  static absl::StatusOr<SparseLayer> Map(const LayerShape& shape);
  // One in memory of its caller, which has shape.bytes() bytes and outlives it. They are zeroed: no
  // row of an earlier use is left. Not for Free.
  static SparseLayer Over(const LayerShape& shape, std::byte* memory);

  const LayerShape& shape() const { return shape_; }
  // [token_count][row_bytes]. Rows that were not read, or whose pages were freed, are zero.
  const std::byte* rows() const { return memory_.get(); }

  // Reads `stripes` (ascending) of a chunk's layer to their places. After an error nothing in these
  // stripes is valid. Returns ChunkRows::Read's errors.
  absl::Status Read(const ChunkRows& from, uint32_t layer, std::span<const uint32_t> stripes);
  // Gives the memory of these pages back.
  void Free(const PageRange& pages);

 private:
  struct Unmap {
    size_t bytes = 0;  // zero for memory of the caller
    void operator()(std::byte* memory) const;
  };
  SparseLayer(const LayerShape& shape, std::byte* memory, size_t bytes)
      : shape_(shape), memory_(memory, Unmap{bytes}) {}

  LayerShape shape_;
  std::unique_ptr<std::byte, Unmap> memory_;
};

}  // namespace ckv
