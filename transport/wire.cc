// Encodes and checks headers and all frames but attends. Decoding a header, in order: magic and
// version, length, checksum, kind and flags, the length of the body, reserved fields. Then each
// kind's own fields. Nothing of a frame is used before these checks, and values are copied first,
// because a peer on shm can still write. CheckReply compares a reply with its request.

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
#include "transport/saturating.h"
#include "transport/wire_attend.h"
#include "transport/wire_score.h"

namespace ckv {
namespace {

constexpr size_t kReplyHeaderBytes = sizeof(ReplyHeader);
constexpr size_t kRequestHeaderBytes = sizeof(RequestHeader);
constexpr uint8_t kKnownFlags = kFlagPartialF32 | kFlagBulk | kFlagApproximate;

uint32_t Checksum(const void* data, size_t bytes) {
  return static_cast<uint32_t>(XXH3_64bits(data, bytes));
}

bool KnownKind(WireKind kind) { return kind >= WireKind::kProbe && kind <= WireKind::kCandidates; }

// The start of both headers.
struct HeaderStart {
  uint32_t magic;
  uint16_t version;
};

// "1" or "1 to 2".
std::string Versions(uint32_t oldest, uint32_t newest) {
  return oldest == newest ? absl::StrFormat("%d", oldest)
                          : absl::StrFormat("%d to %d", oldest, newest);
}

// Checks what must be checked before the rest of a header is read: another version may keep its
// checksum elsewhere.
absl::Status CheckStart(const char* what, uint32_t magic, std::span<const std::byte> slot) {
  HeaderStart start;
  if (slot.size() < sizeof(start)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes are too few", what, slot.size()));
  }
  std::memcpy(&start, slot.data(), sizeof(start));
  if (start.magic != magic)
    return absl::InvalidArgumentError(absl::StrFormat("%s: magic 0x%08x", what, start.magic));
  if (start.version >= kWireVersionMin && start.version <= kWireVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat("%s: wire version %d, this ckv supports %s",
                                                       what, start.version,
                                                       Versions(kWireVersionMin, kWireVersion)));
}

absl::Status CheckLength(const char* what, size_t bytes, size_t needed) {
  if (bytes >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: %d bytes, need %d", what, bytes, needed));
}

absl::Status CheckChecksum(const char* what, uint32_t checksum, uint32_t expected) {
  if (checksum == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: checksum 0x%08x does not match", what, checksum));
}

// Checks the fields that both headers have.
template <typename Header>
absl::Status CheckCommon(const char* what, const Header& header, size_t body_bytes) {
  if (!KnownKind(header.kind)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: kind %d", what, static_cast<int>(header.kind)));
  }
  if ((header.flags & ~kKnownFlags) != 0)
    return absl::InvalidArgumentError(absl::StrFormat("%s: flags 0x%02x", what, header.flags));
  if (header.body_bytes == body_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: body of %d bytes, received %d", what, header.body_bytes, body_bytes));
}

absl::Status CheckReserved(const RequestHeader& header) {
  if ((header.reserved[0] | header.reserved[1]) != 0)
    return absl::InvalidArgumentError("request: a reserved field is not zero");
  if (header.sampled > 1) {
    return absl::InvalidArgumentError(absl::StrFormat("request: sampled %d", header.sampled));
  }
  const bool has_precision = header.kind == WireKind::kAttend;
  if (header.precision <= (has_precision ? WirePrecision::kFast : WirePrecision::kExact))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("request: precision %d", static_cast<int>(header.precision)));
}

// Copies a header and checks its start, length and checksum. Checks the copy, because on shm the
// peer can still write.
template <typename Header>
absl::StatusOr<Header> ReadHeader(const char* what, std::span<const std::byte> slot) {
  Header header;
  CKV_RETURN_IF_ERROR(CheckStart(what, header.magic, slot));
  CKV_RETURN_IF_ERROR(CheckLength(what, slot.size(), sizeof(header)));
  std::memcpy(&header, slot.data(), sizeof(header));
  CKV_RETURN_IF_ERROR(CheckChecksum(what, header.checksum,
                                    Checksum(&header, sizeof(header) - sizeof(header.checksum))));
  return header;
}

template <typename Header>
void WriteHeader(Header header, std::span<std::byte> slot) {
  CKV_CHECK(slot.size() >= sizeof(header));
  header.checksum = Checksum(&header, sizeof(header) - sizeof(header.checksum));
  std::memcpy(slot.data(), &header, sizeof(header));
}

absl::Status CheckScoreCounts(const RequestHeader& header) {
  if ((header.flags | header.segment_count | header.index_count) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("score: flags 0x%02x, %d segments and %d indices, has none", header.flags,
                        header.segment_count, header.index_count));
  }
  if (header.row_count != 0 && header.row_count <= kScoreTokenCountMax && header.piece_count != 0 &&
      header.piece_count <= kScoreChunkCountMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "score: %d tokens over %d runs, must be 1 to %d over 1 to %d", header.row_count,
      header.piece_count, kScoreTokenCountMax, kScoreChunkCountMax));
}

absl::Status CheckAttendCounts(const RequestHeader& header) {
  if (header.row_count == 0 || header.row_count > kQueryRowCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("request: %d query rows, must be 1 to %d",
                                                      header.row_count, kQueryRowCountMax));
  }
  if (header.segment_count == 0 || header.segment_count > kSegmentCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("request: %d segments, must be 1 to %d",
                                                      header.segment_count, kSegmentCountMax));
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

absl::Status CheckFetchEntry(const FetchEntry& entry) {
  if (uint64_t{entry.tensor_begin} + entry.tensor_count > kChunkTensorCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("fetch: %d tensors from %d, limit %d",
                                                      entry.tensor_count, entry.tensor_begin,
                                                      kChunkTensorCountMax));
  }
  if (entry.token_count > std::numeric_limits<uint32_t>::max() - entry.token_begin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: %d tokens from %d wrap", entry.token_count, entry.token_begin));
  }
  if (entry.index_count != 0 &&
      (entry.index_count != entry.token_count || entry.index_count > kFetchIndexCountMax ||
       entry.token_begin != 0 || entry.tensor_count != 1)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: %d indices (limit %d) of %d tensors, for %d tokens from %d", entry.index_count,
        kFetchIndexCountMax, entry.tensor_count, entry.token_count, entry.token_begin));
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

// Makes a peer's text one line of our log, without characters that move a terminal's cursor.
std::string SafeText(std::span<const std::byte> bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (char& c : text) {
    const auto value = static_cast<unsigned char>(c);
    if (value < 0x20 || value == 0x7f) c = '?';
  }
  return text;
}

}  // namespace

absl::StatusOr<uint16_t> CommonWireVersion(uint32_t oldest, uint32_t newest) {
  if (oldest <= newest && oldest <= kWireVersion && newest >= kWireVersionMin)
    return static_cast<uint16_t>(std::min<uint32_t>(newest, kWireVersion));
  return absl::FailedPreconditionError(absl::StrFormat(
      "the requester supports wire version %s, the holder %s: upgrade the older one",
      Versions(oldest, newest), Versions(kWireVersionMin, kWireVersion)));
}

void EncodeHeader(RequestHeader header, std::span<std::byte> slot) { WriteHeader(header, slot); }

void EncodeHeader(ReplyHeader header, std::span<std::byte> slot) { WriteHeader(header, slot); }

absl::StatusOr<RequestHeader> DecodeRequestHeader(std::span<const std::byte> slot) {
  CKV_ASSIGN_OR_RETURN(const auto header, ReadHeader<RequestHeader>("request", slot));
  CKV_RETURN_IF_ERROR(CheckCommon("request", header, slot.size() - kRequestHeaderBytes));
  CKV_RETURN_IF_ERROR(CheckReserved(header));
  if (header.kind == WireKind::kAttend) {
    CKV_RETURN_IF_ERROR(CheckAttendCounts(header));
    return header;
  }
  if (header.kind == WireKind::kScore) {
    CKV_RETURN_IF_ERROR(CheckScoreCounts(header));
    return header;
  }
  if ((header.flags | header.row_count | header.layer | header.segment_count | header.piece_count |
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
  CKV_ASSIGN_OR_RETURN(const auto header, ReadHeader<ReplyHeader>("reply", slot));
  CKV_RETURN_IF_ERROR(CheckCommon("reply", header, slot.size() - kReplyHeaderBytes));
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
  if (header.batch_share != 0 && header.kind != WireKind::kAttend)
    return absl::InvalidArgumentError("reply: a reserved field is not zero");
  return header;
}

absl::StatusOr<FetchRequest> DecodeFetchRequest(const RequestHeader& header,
                                                std::span<const std::byte> slot) {
  const size_t indices_begin = kRequestHeaderBytes + sizeof(FetchEntry);
  if (header.kind != WireKind::kFetch || slot.size() < indices_begin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request of %d bytes: not a fetch", slot.size()));
  }
  FetchRequest request;
  FetchEntry& entry = request.entry;
  std::memcpy(&entry, slot.data() + kRequestHeaderBytes, sizeof(entry));
  CKV_RETURN_IF_ERROR(CheckFetchEntry(entry));
  const size_t index_bytes = size_t{entry.index_count} * sizeof(int32_t);
  if (slot.size() - indices_begin != index_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: received %d bytes of %d indices", slot.size() - indices_begin, entry.index_count));
  }
  CKV_CHECK(reinterpret_cast<uintptr_t>(slot.data()) % alignof(int32_t) == 0);
  request.indices = {reinterpret_cast<const int32_t*>(slot.data() + indices_begin),
                     entry.index_count};
  return request;
}

absl::StatusOr<MapEntry> DecodeMapRequest(const RequestHeader& header,
                                          std::span<const std::byte> slot) {
  if (header.kind != WireKind::kMap || slot.size() != kRequestHeaderBytes + sizeof(MapEntry)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request of %d bytes: not a map", slot.size()));
  }
  MapEntry entry;
  std::memcpy(&entry, slot.data() + kRequestHeaderBytes, sizeof(entry));
  for (const uint32_t word : entry.reserved) {
    if (word != 0) return absl::InvalidArgumentError("map: reserved fields are not zero");
  }
  return entry;
}

absl::StatusOr<MapReply> DecodeMapReply(std::span<const std::byte> slot) {
  MapReply reply;
  if (slot.size() != kReplyHeaderBytes + sizeof(reply)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("reply of %d bytes: not of a map", slot.size()));
  }
  std::memcpy(&reply, slot.data() + kReplyHeaderBytes, sizeof(reply));
  if (reply.bytes == 0 || reply.reserved != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("map: %d bytes, reserved %d", reply.bytes, reply.reserved));
  }
  return reply;
}

namespace {

// Checks a reply. `front` is the body's first bytes, which hold the text of an error.
// `checksum_of_body` is called once the body has the right size.
absl::Status CheckReplyOf(const ReplyHeader& header, size_t bytes, std::span<const std::byte> front,
                          const ExpectedReply& expected,
                          absl::FunctionRef<uint32_t()> checksum_of_body) {
  if (header.body_bytes != bytes) {
    return absl::DataLossError(
        absl::StrFormat("reply: body of %d bytes, received %d", header.body_bytes, bytes));
  }
  // An exact reply to a request that allowed an approximation is fine. An approximate one that was
  // not allowed is not.
  const bool flags_differ = ((header.flags ^ expected.flags) & ~kFlagApproximate) != 0 ||
                            (header.flags & ~expected.flags) != 0;
  if (header.request_id != expected.request_id || header.kind != expected.kind || flags_differ) {
    return absl::DataLossError(
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
    return absl::DataLossError(absl::StrFormat("reply: %d partials of %d rows, asked %d, %d",
                                               header.partial_count, header.row_count,
                                               expected.partial_count, expected.row_count));
  }
  size_t body_bytes = bytes;  // a probe's may be any
  if (expected.kind == WireKind::kAttend || expected.kind == WireKind::kScore ||
      expected.kind == WireKind::kCandidates) {
    body_bytes = expected.body_bytes;
  } else if (expected.kind == WireKind::kFetch) {
    body_bytes = SaturatingMultiply(
        expected.row_bytes, uint64_t{expected.fetch.tensor_count} * expected.fetch.token_count);
  } else if (expected.kind == WireKind::kMap) {
    body_bytes = sizeof(MapReply);
  }
  if (bytes != body_bytes) {
    return absl::DataLossError(
        absl::StrFormat("reply: body of %d bytes, asked for %d", bytes, body_bytes));
  }
  if (expected.kind != WireKind::kFetch || !expected.checksummed) {
    if (header.body_checksum == 0) return absl::OkStatus();
    return absl::DataLossError("reply: body checksum on what has none");
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
  if (reply_bytes_max < kReplyHeaderBytes) return 0;
  return std::min(static_cast<uint32_t>(reply_bytes_max - kReplyHeaderBytes), kFetchBodyBytesMax);
}

uint32_t EncodeErrorReply(const RequestHeader& request, const absl::Status& status,
                          uint32_t retry_after_us, std::span<std::byte> slot) {
  CKV_CHECK(!status.ok() && slot.size() >= kReplyHeaderBytes);
  const std::string text(status.message());
  size_t bytes =
      std::min({text.size(), size_t{kErrorTextBytesMax}, slot.size() - kReplyHeaderBytes});
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
  std::memcpy(slot.data() + kReplyHeaderBytes, text.data(), bytes);
  return static_cast<uint32_t>(kReplyHeaderBytes + bytes);
}

uint32_t EncodeProbeReply(const RequestHeader& request, std::span<const std::byte> request_slot,
                          std::span<std::byte> slot) {
  CKV_CHECK(request.kind == WireKind::kProbe && request_slot.size() >= kRequestHeaderBytes &&
            slot.size() >= kReplyHeaderBytes);
  const size_t bytes =
      std::min(request_slot.size() - kRequestHeaderBytes, slot.size() - kReplyHeaderBytes);
  ReplyHeader header;
  header.kind = WireKind::kProbe;
  header.request_id = request.request_id;
  header.epoch = request.epoch;
  header.body_bytes = static_cast<uint32_t>(bytes);
  EncodeHeader(header, slot);
  std::memcpy(slot.data() + kReplyHeaderBytes, request_slot.data() + kRequestHeaderBytes, bytes);
  return static_cast<uint32_t>(kReplyHeaderBytes + bytes);
}

}  // namespace ckv
