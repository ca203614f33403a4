#include "client/paged/splice.h"

#include "proto/base/status.h"

namespace ckv {
namespace {

RowView RowsOf(const Geometry& geometry, std::span<const std::byte> rows, MemoryKind memory) {
  const uint32_t row_bytes = geometry.row_bytes();
  CKV_CHECK(rows.size() % row_bytes == 0);
  return {rows.data(), static_cast<uint32_t>(rows.size() / row_bytes), row_bytes, memory};
}

}  // namespace

RopeRotation SpliceRotation(const Geometry& geometry, int64_t delta) {
  const bool turns = geometry.d_rope != 0 && geometry.rope.style != RopeStyle::kNone;
  return RopeRotation(geometry.rope, turns ? geometry.d_rope : 0, turns ? delta : 0);
}

absl::Status Splice(const RopeRotation& rotation, const Geometry& geometry,
                    std::span<const std::byte> rows, const PagedPlace& to, ComputeStream& stream,
                    MemoryKind rows_memory) {
  return stream.backend().Scatter(rotation, RowsOf(geometry, rows, rows_memory),
                                  geometry.row_bytes(), to, stream);
}

absl::Status SpliceInPlace(const RopeRotation& rotation, const Geometry& geometry,
                           std::span<std::byte> rows, ComputeStream& stream,
                           MemoryKind rows_memory) {
  return stream.backend().Rotate(rotation, RowsOf(geometry, rows, rows_memory),
                                 geometry.row_bytes(), {rows.data(), rows_memory}, stream);
}

}  // namespace ckv
