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
#include "transport/wire_attend.h"
#include "transport/wire_score.h"

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

void CheckSegment(const AttendRequest& attend, const AttendSegment& segment,
                  const Geometry& geometry) {
  CKV_CHECK(segment.piece_begin < segment.piece_end && segment.piece_end <= attend.pieces.size());
  uint32_t partial_count = 0;
  for (uint32_t i = segment.piece_begin; i < segment.piece_end; ++i) {
    const PieceEntry& piece = attend.pieces[i];
    CKV_CHECK(piece.copy < segment.copy_count && piece.partial < segment.partial_count);
    partial_count = piece.partial + 1;
    CKV_CHECK((piece.index_begin == kChosen) == (segment.candidates != 0));
    CKV_CHECK(piece.more == 0 || piece.index_begin == kChosen);
    CKV_CHECK(piece.handle + piece.more >= piece.handle && piece.more <= kChosenChunkCountMax);
    if (piece.index_begin == kDense || piece.index_begin == kChosen) continue;
    const uint64_t groups = (uint64_t{segment.row_count} + piece.group_rows - 1) / piece.group_rows;
    CKV_CHECK(piece.index_begin + groups * piece.k <= attend.indices.size());
  }
  CKV_CHECK(partial_count == segment.partial_count);
  const size_t row_bytes = size_t{geometry.d_qk} * 2;
  (void)ReadAll(attend.rows + segment.stored_row_begin * geometry.d_qk,
                size_t{segment.copy_count} * segment.row_count * row_bytes);
}

void CheckScores(const RequestHeader& header, std::span<const std::byte> slot) {
  static ScoreRequest score;  // reused, as the holder does
  static const Geometry geometry = [] {
    Geometry indexed = SmallGeometry();
    indexed.index = IndexShape{.dim = 8, .heads = 2, .d_rope = 4, .scale = 1};
    return indexed;
  }();
  if (DecodeScoreRequest(header, slot, geometry, score).ok()) {
    CKV_CHECK(score.token_count <= kScoreTokenCountMax);
    CKV_CHECK(score.chunk_count <= kScoreChunkCountMax);
    const size_t vectors = size_t{score.token_count} * geometry.index->heads;
    (void)ReadAll(score.q, vectors * geometry.index->dim * ValueBytes(score.entry.dtype));
    (void)ReadAll(score.weights, vectors * sizeof(float));
  }
  const absl::StatusOr<CandidatesEntry> candidates = DecodeCandidatesRequest(header, slot);
  if (candidates.ok()) CKV_CHECK(candidates->begin + candidates->count <= 2 * kIndexTopMax);
}

void Request(std::span<const std::byte> slot) {
  static AttendRequest attend;  // reused, as the dispatcher does
  static const Geometry geometry = SmallGeometry();
  const absl::StatusOr<RequestHeader> header = DecodeRequestHeader(slot);
  if (!header.ok()) return;
  CKV_CHECK(header->body_bytes == slot.size() - sizeof(RequestHeader));
  if (DecodeAttendRequest(*header, slot, geometry, attend).ok()) {
    CKV_CHECK(attend.pieces.size() == header->piece_count);
    for (const AttendSegment& segment : attend.segments) CheckSegment(attend, segment, geometry);
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
  CheckScores(*header, slot);
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
  expected.body_bytes = 2 * 60;
  expected.fetch.tensor_count = 2;
  expected.fetch.token_count = 5;
  expected.row_bytes = 4;
  const absl::Status status = CheckReply(*header, slot.subspan(sizeof(ReplyHeader)), expected);
  CKV_CHECK(!status.ok() || header->code == 0);
  if (!status.ok()) CKV_CHECK(status.message().size() < 1024);
  const absl::StatusOr<MapReply> map = DecodeMapReply(slot);
  if (map.ok()) CKV_CHECK(map->bytes > 0);
}

void OneInput(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const uint8_t mode = data[0];
  const auto slot = MakeSlot(data + 1, size - 1);
  const std::span<std::byte> bytes(slot.get(), size - 1);
  const size_t header_bytes = (mode & 1) == 0 ? sizeof(RequestHeader) : kHeaderBytes;
  if ((mode & 2) != 0 && bytes.size() >= header_bytes) {
    const auto checksum = static_cast<uint32_t>(XXH3_64bits(bytes.data(), header_bytes - 4));
    std::memcpy(bytes.data() + header_bytes - 4, &checksum, sizeof(checksum));
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
