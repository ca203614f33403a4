#include "transport/wire.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/xxh3.h"
#include "transport/body_checksum.h"

namespace ckv {
namespace {

constexpr size_t kHeaderBytes = 64;
constexpr size_t kCheckedBytes = kHeaderBytes - sizeof(uint32_t);  // all but the checksum
constexpr size_t kSaturated = std::numeric_limits<size_t>::max();

size_t SaturatingAdd(size_t a, size_t b) { return a > kSaturated - b ? kSaturated : a + b; }

size_t SaturatingMultiply(size_t a, size_t b) {
  size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kSaturated : product;
}

size_t RoundUp(size_t bytes, size_t multiple) {
  const size_t rounded = SaturatingAdd(bytes, multiple - 1);
  return rounded == kSaturated ? kSaturated : rounded & ~(multiple - 1);
}

uint32_t Checksum(const void* data, size_t bytes) {
  return static_cast<uint32_t>(XXH3_64bits(data, bytes));
}

bool KnownKind(WireKind kind) {
  return kind == WireKind::kProbe || kind == WireKind::kAttend || kind == WireKind::kFetch ||
         kind == WireKind::kMap;
}

template <typename Header>
void Encode(Header header, std::span<std::byte> slot) {
  static_assert(sizeof(Header) == kHeaderBytes);
  CKV_CHECK(slot.size() >= kHeaderBytes);
  header.checksum = Checksum(&header, kCheckedBytes);
  std::memcpy(slot.data(), &header, kHeaderBytes);
}

// Checks the part that both headers have in common. The version is checked before the checksum,
// because another version may keep its checksum elsewhere.
template <typename Header>
absl::StatusOr<Header> DecodeCommon(const char* what, uint32_t magic,
                                    std::span<const std::byte> slot) {
  if (slot.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, need %d", what, slot.size(), kHeaderBytes));
  }
  Header header;
  std::memcpy(&header, slot.data(), kHeaderBytes);
  if (header.magic != magic) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: magic 0x%08x", what, header.magic));
  }
  if (header.version != kWireVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: wire version %d, speak %d", what, header.version, kWireVersion));
  }
  if (header.checksum != Checksum(&header, kCheckedBytes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: checksum 0x%08x does not match", what, header.checksum));
  }
  if (!KnownKind(header.kind)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: kind %d", what, static_cast<int>(header.kind)));
  }
  if ((header.flags & ~kFlagsKnown) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: flags 0x%02x", what, header.flags));
  }
  if (header.body_bytes != slot.size() - kHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: body of %d bytes, %d came", what, header.body_bytes, slot.size() - kHeaderBytes));
  }
  return header;
}

absl::Status CheckAttendCounts(const RequestHeader& header) {
  if (header.row_count == 0 || header.row_count > kQueryRowCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("request: %d query rows, must be 1 to %d",
                                                      header.row_count, kQueryRowCountMax));
  }
  if (header.copy_count == 0 || header.copy_count > kCopyCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "request: %d copies of the rows, must be 1 to %d", header.copy_count, kCopyCountMax));
  }
  if (header.piece_count == 0 || header.piece_count > kPieceCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request: %d pieces, must be 1 to %d", header.piece_count, kPieceCountMax));
  }
  if (header.index_count > kIndexCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request: %d indices, limit %d", header.index_count, kIndexCountMax));
  }
  return absl::OkStatus();
}

absl::Status CheckPiece(const RequestHeader& header, uint32_t ordinal, const PieceEntry& piece) {
  if ((piece.reserved[0] | piece.reserved[1] | piece.reserved[2]) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: reserved fields are not zero", ordinal));
  }
  if (piece.copy >= header.copy_count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: copy %d of %d", ordinal, piece.copy, header.copy_count));
  }
  if (piece.group_rows == 0 || piece.group_rows > header.row_count) {
    return absl::InvalidArgumentError(absl::StrFormat("piece %d: groups of %d rows, %d rows came",
                                                      ordinal, piece.group_rows, header.row_count));
  }
  if (piece.index_begin == kDense) {
    if (piece.k == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: dense with k %d", ordinal, piece.k));
  }
  // At most 4096 groups x 2^32: no overflow in 64 bits.
  const uint64_t group_count = (header.row_count + piece.group_rows - 1) / piece.group_rows;
  if (piece.index_begin + group_count * piece.k > header.index_count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: indices from %d, %d groups of %d, %d came", ordinal,
                        piece.index_begin, group_count, piece.k, header.index_count));
  }
  return absl::OkStatus();
}

absl::Status CheckFetchEntry(const FetchEntry& entry) {
  if (uint64_t{entry.layer_begin} + entry.layer_count > kLayerCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("fetch: %d layers from %d, limit %d",
                                                      entry.layer_count, entry.layer_begin,
                                                      kLayerCountMax));
  }
  if (entry.token_count > std::numeric_limits<uint32_t>::max() - entry.token_begin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: %d tokens from %d wrap", entry.token_count, entry.token_begin));
  }
  if (entry.index_count != 0 &&
      (entry.index_count != entry.token_count || entry.index_count > kFetchIndexCountMax ||
       entry.token_begin != 0 || entry.layer_count != 1)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: %d indices (limit %d) of %d layers, for %d tokens from %d", entry.index_count,
        kFetchIndexCountMax, entry.layer_count, entry.token_count, entry.token_begin));
  }
  // A bf16 row is the widest.
  if (uint64_t{entry.column_begin} + entry.column_bytes > kRowWidthMax * 2 ||
      (entry.column_begin | entry.column_bytes) % 4 != 0 ||
      (entry.column_bytes == 0 && entry.column_begin != 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: %d bytes from %d of each row, must be multiples of 4, at most %d",
                        entry.column_bytes, entry.column_begin, kRowWidthMax * 2));
  }
  return absl::OkStatus();
}

// A peer's text goes into our log as one line, without characters that move a terminal's cursor.
std::string SafeText(std::span<const std::byte> bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (char& c : text) {
    const auto value = static_cast<unsigned char>(c);
    if (value < 0x20 || value == 0x7f) c = '?';
  }
  return text;
}

}  // namespace

AttendLayout LayOutAttend(uint32_t piece_count, uint32_t copy_count, uint32_t row_count,
                          uint32_t index_count, uint32_t d_qk) {
  AttendLayout layout;
  layout.pieces = kHeaderBytes;
  layout.rows = RoundUp(layout.pieces + size_t{piece_count} * sizeof(PieceEntry), 64);
  const size_t row_values = SaturatingMultiply(size_t{copy_count} * row_count, d_qk);
  layout.indices =
      RoundUp(SaturatingAdd(layout.rows, SaturatingMultiply(row_values, sizeof(uint16_t))), 64);
  layout.total_bytes = SaturatingAdd(layout.indices, size_t{index_count} * sizeof(int32_t));
  return layout;
}

PartialLayout LayOutPartial(uint32_t row_count, uint32_t d_v, bool f32) {
  PartialLayout layout;
  const size_t values = size_t{row_count} * d_v;
  layout.m = RoundUp(SaturatingMultiply(values, f32 ? 4 : 2), 4);
  layout.l = SaturatingAdd(layout.m, size_t{row_count} * sizeof(float));
  layout.total_bytes = SaturatingAdd(layout.l, size_t{row_count} * sizeof(float));
  return layout;
}

void EncodeHeader(RequestHeader header, std::span<std::byte> slot) { Encode(header, slot); }
void EncodeHeader(ReplyHeader header, std::span<std::byte> slot) { Encode(header, slot); }

absl::StatusOr<RequestHeader> DecodeRequestHeader(std::span<const std::byte> slot) {
  CKV_ASSIGN_OR_RETURN(const RequestHeader header,
                       DecodeCommon<RequestHeader>("request", kRequestMagic, slot));
  if (header.reserved != 0) {
    return absl::InvalidArgumentError("request: reserved field is not zero");
  }
  if (header.kind == WireKind::kAttend) {
    CKV_RETURN_IF_ERROR(CheckAttendCounts(header));
    return header;
  }
  if ((header.flags | header.row_count | header.layer | header.copy_count | header.piece_count |
       header.index_count) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "request: kind %d has no counts, layer or flags", static_cast<int>(header.kind)));
  }
  if (header.kind == WireKind::kFetch &&
      (header.body_bytes < sizeof(FetchEntry) || header.body_bytes % sizeof(int32_t) != 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: body of %d bytes, must be %d and 4 an index", header.body_bytes,
                        sizeof(FetchEntry)));
  }
  if (header.kind == WireKind::kMap && header.body_bytes != sizeof(MapEntry)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("map: body of %d bytes, must be %d", header.body_bytes, sizeof(MapEntry)));
  }
  return header;
}

absl::StatusOr<ReplyHeader> DecodeReplyHeader(std::span<const std::byte> slot) {
  CKV_ASSIGN_OR_RETURN(const ReplyHeader header,
                       DecodeCommon<ReplyHeader>("reply", kReplyMagic, slot));
  if (header.code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::InvalidArgumentError(absl::StrFormat("reply: status code %d", header.code));
  }
  if (header.code != 0 && header.body_bytes > kErrorTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("reply: error text of %d bytes, limit %d",
                                                      header.body_bytes, kErrorTextBytesMax));
  }
  if (header.row_count > kQueryRowCountMax || header.partial_count > kPieceCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("reply: %d partials of %d rows, limit %d, %d",
                                                      header.partial_count, header.row_count,
                                                      kPieceCountMax, kQueryRowCountMax));
  }
  return header;
}

absl::Status DecodeAttendRequest(const RequestHeader& header, std::span<const std::byte> slot,
                                 const Geometry& geometry, AttendRequest& out) {
  if (header.kind != WireKind::kAttend) {
    return absl::InvalidArgumentError("request: not an attend");
  }
  CKV_RETURN_IF_ERROR(CheckAttendCounts(header));
  if (header.layer >= geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: layer %d of %d", header.layer, geometry.layers));
  }
  const AttendLayout layout = LayOutAttend(header.piece_count, header.copy_count, header.row_count,
                                           header.index_count, geometry.d_qk);
  if (layout.total_bytes != slot.size() || header.body_bytes != slot.size() - kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: %d pieces, %d x %d rows of %d, %d indices are %d bytes, %d came",
                        header.piece_count, header.copy_count, header.row_count, geometry.d_qk,
                        header.index_count, layout.total_bytes, slot.size()));
  }
  CKV_CHECK(reinterpret_cast<uintptr_t>(slot.data()) % alignof(int32_t) == 0);
  out.header = header;
  out.pieces.resize(header.piece_count);
  std::memcpy(out.pieces.data(), slot.data() + layout.pieces,
              header.piece_count * sizeof(PieceEntry));
  for (uint32_t i = 0; i < header.piece_count; ++i) {
    CKV_RETURN_IF_ERROR(CheckPiece(header, i, out.pieces[i]));
  }
  out.rows = reinterpret_cast<const uint16_t*>(slot.data() + layout.rows);
  out.indices = {reinterpret_cast<const int32_t*>(slot.data() + layout.indices),
                 header.index_count};
  return absl::OkStatus();
}

absl::StatusOr<FetchRequest> DecodeFetchRequest(const RequestHeader& header,
                                                std::span<const std::byte> slot) {
  constexpr size_t kIndicesBegin = kHeaderBytes + sizeof(FetchEntry);
  if (header.kind != WireKind::kFetch || slot.size() < kIndicesBegin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request of %d bytes: not a fetch", slot.size()));
  }
  FetchRequest request;
  FetchEntry& entry = request.entry;
  std::memcpy(&entry, slot.data() + kHeaderBytes, sizeof(entry));
  CKV_RETURN_IF_ERROR(CheckFetchEntry(entry));
  const size_t index_bytes = size_t{entry.index_count} * sizeof(int32_t);
  if (slot.size() - kIndicesBegin != index_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: %d bytes of %d indices came", slot.size() - kIndicesBegin, entry.index_count));
  }
  CKV_CHECK(reinterpret_cast<uintptr_t>(slot.data()) % alignof(int32_t) == 0);
  request.indices = {reinterpret_cast<const int32_t*>(slot.data() + kIndicesBegin),
                     entry.index_count};
  return request;
}

absl::StatusOr<MapEntry> DecodeMapRequest(const RequestHeader& header,
                                          std::span<const std::byte> slot) {
  if (header.kind != WireKind::kMap || slot.size() != kHeaderBytes + sizeof(MapEntry)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request of %d bytes: not a map", slot.size()));
  }
  MapEntry entry;
  std::memcpy(&entry, slot.data() + kHeaderBytes, sizeof(entry));
  for (const uint32_t word : entry.reserved) {
    if (word != 0) return absl::InvalidArgumentError("map: reserved fields are not zero");
  }
  return entry;
}

absl::StatusOr<MappedLayout> DecodeMapReply(std::span<const std::byte> slot) {
  MappedLayout layout;
  if (slot.size() != kHeaderBytes + sizeof(layout)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("reply of %d bytes: not of a map", slot.size()));
  }
  std::memcpy(&layout, slot.data() + kHeaderBytes, sizeof(layout));
  if (layout.layers == 0 || layout.layers > kLayerCountMax || layout.layer_bytes == 0 ||
      layout.layer_bytes > layout.layer_stride_bytes || layout.layer_stride_bytes % 64 != 0 ||
      layout.layer_stride_bytes > layout.total_bytes / layout.layers || layout.reserved != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("map: %d layers of %d bytes, one every %d, in %d bytes", layout.layers,
                        layout.layer_bytes, layout.layer_stride_bytes, layout.total_bytes));
  }
  return layout;
}

namespace {

// Checks a reply. `front` is the body's first bytes, which hold the text of an error.
// `checksum_of_body` is called once the body has the right size.
absl::Status CheckReplyOf(const ReplyHeader& header, size_t bytes, std::span<const std::byte> front,
                          const ExpectedReply& expected,
                          absl::FunctionRef<uint32_t()> checksum_of_body) {
  if (header.body_bytes != bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("reply: body of %d bytes, %d came", header.body_bytes, bytes));
  }
  // An exact reply to a request that allowed an approximation is fine. An approximate one that was
  // not allowed is not.
  const bool flags_differ = ((header.flags ^ expected.flags) & ~kFlagApproximate) != 0 ||
                            (header.flags & ~expected.flags) != 0;
  if (header.request_id != expected.request_id || header.kind != expected.kind || flags_differ) {
    return absl::InvalidArgumentError(
        absl::StrFormat("reply to request %d, kind %d, flags 0x%02x; asked %d, %d, 0x%02x",
                        header.request_id, static_cast<int>(header.kind), header.flags,
                        expected.request_id, static_cast<int>(expected.kind), expected.flags));
  }
  if (header.code != 0) {
    const std::string text =
        SafeText(front.first(std::min<size_t>(front.size(), kErrorTextBytesMax)));
    return absl::Status(static_cast<absl::StatusCode>(header.code), text);
  }
  if (header.row_count != expected.row_count || header.partial_count != expected.partial_count) {
    return absl::InvalidArgumentError(absl::StrFormat("reply: %d partials of %d rows, asked %d, %d",
                                                      header.partial_count, header.row_count,
                                                      expected.partial_count, expected.row_count));
  }
  size_t body_bytes = bytes;  // a probe's may be any
  if (expected.kind == WireKind::kAttend) {
    const bool f32 = (expected.flags & kFlagPartialF32) != 0;
    body_bytes = SaturatingMultiply(
        expected.partial_count, LayOutPartial(expected.row_count, expected.d_v, f32).total_bytes);
  } else if (expected.kind == WireKind::kFetch) {
    body_bytes = SaturatingMultiply(
        expected.row_bytes, uint64_t{expected.fetch.layer_count} * expected.fetch.token_count);
  } else if (expected.kind == WireKind::kMap) {
    body_bytes = sizeof(MappedLayout);
  }
  if (bytes != body_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("reply: body of %d bytes, asked for %d", bytes, body_bytes));
  }
  if (expected.kind != WireKind::kFetch || !expected.checksummed) {
    if (header.body_checksum == 0) return absl::OkStatus();
    return absl::InvalidArgumentError("reply: body checksum on what has none");
  }
  const uint32_t checksum = checksum_of_body();
  if (header.body_checksum != checksum) {
    return absl::DataLossError(absl::StrFormat("reply: body checksum 0x%08x, the bytes give 0x%08x",
                                               header.body_checksum, checksum));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReply(const ReplyHeader& header, std::span<const std::byte> body,
                        const ExpectedReply& expected) {
  return CheckReplyOf(header, body.size(), body, expected,
                      [&] { return BodyChecksum(expected.fetch, expected.row_bytes, body); });
}

absl::Status CheckReply(const ReplyHeader& header, const ScatterList& body,
                        const ExpectedReply& expected) {
  const std::span<const std::byte> front =
      body.empty() ? std::span<std::byte>() : body.spans().front();
  return CheckReplyOf(header, body.bytes(), front, expected,
                      [&] { return BodyChecksum(expected.fetch, expected.row_bytes, body); });
}

uint32_t FetchBodyBytesMax(uint32_t reply_bytes_max) {
  if (reply_bytes_max < kHeaderBytes) return 0;
  return std::min(static_cast<uint32_t>(reply_bytes_max - kHeaderBytes), kFetchBodyBytesMax);
}

uint32_t EncodeErrorReply(const RequestHeader& request, const absl::Status& status,
                          uint32_t retry_after_us, std::span<std::byte> slot) {
  CKV_CHECK(!status.ok() && slot.size() >= kHeaderBytes);
  const std::string text(status.message());
  size_t bytes = std::min({text.size(), size_t{kErrorTextBytesMax}, slot.size() - kHeaderBytes});
  // A cut in the middle of a UTF-8 character drops that character.
  if (bytes < text.size()) {
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  }
  ReplyHeader header;
  header.kind = request.kind;
  header.flags = request.flags;
  header.request_id = request.request_id;
  header.epoch = request.epoch;
  header.code = static_cast<uint32_t>(status.code());
  header.body_bytes = static_cast<uint32_t>(bytes);
  header.retry_after_us = retry_after_us;
  EncodeHeader(header, slot);
  std::memcpy(slot.data() + kHeaderBytes, text.data(), bytes);
  return static_cast<uint32_t>(kHeaderBytes + bytes);
}

uint32_t EncodeProbeReply(const RequestHeader& request, std::span<const std::byte> request_slot,
                          std::span<std::byte> slot) {
  CKV_CHECK(request.kind == WireKind::kProbe && request_slot.size() >= kHeaderBytes &&
            slot.size() >= kHeaderBytes);
  const size_t bytes = std::min(request_slot.size(), slot.size()) - kHeaderBytes;
  ReplyHeader header;
  header.kind = WireKind::kProbe;
  header.request_id = request.request_id;
  header.epoch = request.epoch;
  header.body_bytes = static_cast<uint32_t>(bytes);
  EncodeHeader(header, slot);
  std::memcpy(slot.data() + kHeaderBytes, request_slot.data() + kHeaderBytes, bytes);
  return static_cast<uint32_t>(kHeaderBytes + bytes);
}

}  // namespace ckv
