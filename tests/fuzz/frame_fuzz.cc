// Goal: no bytes of a peer crash the frame decoder or make it read outside the slot.
// Method: the first byte says what the rest is (a request, a reply, or either with its checksum
// repaired, so that the fields behind it are reached); every decoded pointer is read through.

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "proto/base/status.h"
#include "proto/geometry.h"
#include "transport/wire.h"

namespace ckv {
namespace {

constexpr size_t kHeaderBytes = 64;

struct AlignedDelete {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

// A slot of exactly these bytes, aligned as slots are, so that the sanitizer sees one too far.
std::unique_ptr<std::byte, AlignedDelete> MakeSlot(const uint8_t* data, size_t size) {
  void* memory = nullptr;
  CKV_CHECK(posix_memalign(&memory, 64, size == 0 ? 1 : size) == 0);
  if (size > 0) std::memcpy(memory, data, size);
  return std::unique_ptr<std::byte, AlignedDelete>(static_cast<std::byte*>(memory));
}

uint64_t ReadAll(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

Geometry SmallGeometry() {
  Geometry geometry;
  geometry.layers = 4;
  geometry.d_qk = 8;
  geometry.d_v = 6;
  geometry.d_rope = 2;
  return geometry;
}

void Request(std::span<const std::byte> slot) {
  static AttendRequest attend;  // reused, as the dispatcher does
  static const Geometry geometry = SmallGeometry();
  const absl::StatusOr<RequestHeader> header = DecodeRequestHeader(slot);
  if (!header.ok()) return;
  CKV_CHECK(header->body_bytes == slot.size() - kHeaderBytes);
  if (DecodeAttendRequest(*header, slot, geometry, attend).ok()) {
    CKV_CHECK(attend.pieces.size() == header->piece_count);
    for (const PieceEntry& piece : attend.pieces) {
      CKV_CHECK(piece.copy < header->copy_count);
      if (piece.index_begin == kDense) continue;
      const uint64_t groups =
          (uint64_t{header->row_count} + piece.group_rows - 1) / piece.group_rows;
      CKV_CHECK(piece.index_begin + groups * piece.k <= attend.indices.size());
    }
    (void)ReadAll(attend.rows, size_t{2} * header->copy_count * header->row_count * geometry.d_qk);
    (void)ReadAll(attend.indices.data(), attend.indices.size_bytes());
  }
  const absl::StatusOr<FetchRequest> fetch = DecodeFetchRequest(*header, slot);
  if (fetch.ok()) {
    const FetchEntry& entry = fetch->entry;
    CKV_CHECK(entry.token_begin + uint64_t{entry.token_count} <= 0xffffffff);
    CKV_CHECK(uint64_t{entry.column_begin} + entry.column_bytes <= kRowWidthMax * 2);
    CKV_CHECK(fetch->indices.empty() || fetch->indices.size() == entry.token_count);
    (void)ReadAll(fetch->indices.data(), fetch->indices.size_bytes());
  }
  if (DecodeMapRequest(*header, slot).ok()) CKV_CHECK(header->body_bytes == sizeof(MapEntry));
  std::byte reply[128];
  CKV_CHECK(EncodeErrorReply(*header, absl::InternalError("x"), 0, reply) == kHeaderBytes + 1);
  if (header->kind == WireKind::kProbe) CKV_CHECK(EncodeProbeReply(*header, slot, reply) <= 128);
}

void Reply(std::span<const std::byte> slot) {
  const absl::StatusOr<ReplyHeader> header = DecodeReplyHeader(slot);
  if (!header.ok()) return;
  ExpectedReply expected;
  expected.request_id = header->request_id;
  expected.kind = header->kind;
  expected.flags = header->flags;
  expected.row_count = 3;
  expected.partial_count = 2;
  expected.d_v = 6;
  expected.fetch.layer_count = 2;
  expected.fetch.token_count = 5;
  expected.row_bytes = 4;
  const absl::Status status = CheckReply(*header, slot.subspan(sizeof(ReplyHeader)), expected);
  CKV_CHECK(!status.ok() || header->code == 0);
  if (!status.ok()) CKV_CHECK(status.message().size() < 1024);
  const absl::StatusOr<MappedLayout> map = DecodeMapReply(slot);
  if (map.ok()) {
    const __uint128_t end = __uint128_t{map->layers - 1} * map->layer_stride_bytes;
    CKV_CHECK(end + map->layer_bytes <= map->total_bytes);
  }
}

void OneInput(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const uint8_t mode = data[0];
  const auto slot = MakeSlot(data + 1, size - 1);
  const std::span<std::byte> bytes(slot.get(), size - 1);
  if ((mode & 2) != 0 && bytes.size() >= kHeaderBytes) {
    const auto checksum = static_cast<uint32_t>(XXH3_64bits(bytes.data(), kHeaderBytes - 4));
    std::memcpy(bytes.data() + kHeaderBytes - 4, &checksum, sizeof(checksum));
  }
  if ((mode & 1) == 0) {
    Request(bytes);
  } else {
    Reply(bytes);
  }
}

}  // namespace
}  // namespace ckv

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckv::OneInput(data, size);
  return 0;
}
