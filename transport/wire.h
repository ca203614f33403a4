// The data plane's frames: the contents of a request slot and of a reply slot, byte by byte.
//
// Frames are little-endian and versioned, with fixed headers. Every offset follows from the
// header's counts, so one transfer carries a whole message. Decoding checks every field before it
// uses the field as a size. It copies the fields that it checks, because on shm the peer can still
// write.
//
//   request   RequestHeader | body
//     probe     any bytes
//     attend    transport/wire_attend.h
//     fetch     FetchEntry | indices i32 [index_count]
//     map       MapEntry
//     score, candidates   transport/wire_score.h
//   reply     ReplyHeader | body
//     probe     the request's bytes, as many as the slot holds
//     attend    transport/wire_attend.h
//     fetch     the rows, [layer][token][row_bytes], or the requested slice of each
//     map       MapReply; a descriptor arrives with the reply
//     score, candidates   transport/wire_score.h
//     error     UTF-8 text, at most kErrorTextBytesMax
//
// A session uses one version: the highest that both peers support. From version 2 on, a build
// supports its own version and the one before it (I7). So a fleet can be upgraded one process at a
// time. deploy/handbook/formats.md has the rules for a new version.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/trace_context.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "proto/kernel_target.h"
#include "transport/scatter_list.h"

namespace ckv {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kRequestMagic = 0x51564b43;  // "CKVQ"
inline constexpr uint32_t kReplyMagic = 0x52564b43;    // "CKVR"
inline constexpr uint16_t kWireVersion = 1;
inline constexpr uint16_t kWireVersionMin = 1;  // the oldest version that this build supports

// Returns the version of a session: the newest that both this holder and a requester of versions
// `oldest` to `newest` support.
//   FailedPrecondition  there is none; the message names the versions of both.
absl::StatusOr<uint16_t> CommonWireVersion(uint32_t oldest, uint32_t newest);

inline constexpr uint32_t kQueryRowCountMax = 4096;   // rows of one frame
inline constexpr uint32_t kPieceCountMax = 4096;      // PieceEntry items of one frame: 128 KiB
inline constexpr uint32_t kIndexCountMax = 1u << 22;  // selected indices of one frame
inline constexpr uint32_t kErrorTextBytesMax = 512;

enum class WireKind : uint8_t {
  kProbe = 1,
  kAttend = 2,
  kFetch = 3,
  kMap = 4,
  kScore = 5,       // transport/wire_score.h
  kCandidates = 6,  // the same
};

// Flags of RequestHeader::flags.
inline constexpr uint8_t kFlagPartialF32 = 1;  // o is returned in f32
// Marks a frame of a call with many query rows. The requester waits for the last frame of the call,
// so a holder may queue this frame behind frames without the flag.
inline constexpr uint8_t kFlagBulk = 2;
// Allows the holder to use packed rows in memory instead of the exact rows that it has on disk. In
// a reply: some rows were packed.
inline constexpr uint8_t kFlagApproximate = 4;

// The least precision that an answer must have (attention/precision.h). A holder may always answer
// with a better precision, and a holder without a matrix unit does.
enum class WirePrecision : uint8_t { kExact = 0, kWire = 1, kFast = 2 };

struct RequestHeader {
  uint32_t magic = kRequestMagic;
  uint16_t version = kWireVersion;
  WireKind kind = WireKind::kProbe;
  uint8_t flags = 0;
  uint64_t request_id = 0;
  uint64_t epoch = 0;
  uint64_t session = 0;
  uint32_t deadline_us = 0;  // time left when the request was sent
  uint32_t body_bytes = 0;
  uint32_t row_count = 0;  // query rows of all segments: tokens x heads
  uint16_t layer = 0;
  uint16_t segment_count = 0;
  uint32_t piece_count = 0;
  uint32_t index_count = 0;
  // The trace of the call (proto/base/trace_context.h), for logs and spans. All fields are zero if
  // the call has no trace.
  TraceId trace_id = {};
  SpanId span_id = {};
  uint8_t sampled = 0;  // 0 or 1
  WirePrecision precision = WirePrecision::kExact;
  uint8_t reserved[2] = {};  // zero
  uint32_t checksum = 0;     // low half of XXH3-64 of the bytes before it
};
static_assert(sizeof(RequestHeader) == 88 && std::is_trivially_copyable_v<RequestHeader>);

inline TraceContext TraceOf(const RequestHeader& header) {
  return {header.trace_id, header.span_id, header.sampled != 0};
}
inline void SetTrace(const TraceContext& trace, RequestHeader& header) {
  header.trace_id = trace.trace_id;
  header.span_id = trace.span_id;
  header.sampled = trace.sampled ? 1 : 0;
}

// The rows to return: tensors x tokens of one chunk, or chosen rows of one of its tensors
// (proto/chunk_layout.h). The tensors of one request have rows of one size. Each row is sent whole,
// or the same slice of each row. Chosen rows and slices are not adjacent in the store. The holder
// gathers them into its reply slot, so any number of them is one transfer.
struct FetchEntry {
  uint32_t handle = 0;
  uint32_t tensor_begin = 0;
  uint32_t tensor_count = 0;
  uint32_t token_begin = 0;
  uint32_t token_count = 0;
  // Zero for adjacent rows. Otherwise equal to token_count, and the indices that follow name the
  // rows, in the order to send. A row named twice is sent twice. Then tensor_count is 1 and
  // token_begin is 0.
  uint32_t index_count = 0;
  // The slice [column_begin, column_begin + column_bytes) of each row. Both are in bytes and
  // multiples of 4. Both are 0 for whole rows.
  uint32_t column_begin = 0;
  uint32_t column_bytes = 0;

  // Returns whether the layout of the rows in the store differs from their layout in the reply.
  bool gathered() const { return index_count != 0 || column_bytes != 0; }
  // Returns the bytes of one row as sent; `row_bytes` are the bytes of one row in the store.
  uint64_t sent_row_bytes(uint64_t row_bytes) const {
    return column_bytes != 0 ? column_bytes : row_bytes;
  }
};
static_assert(sizeof(FetchEntry) == 32 && std::is_trivially_copyable_v<FetchEntry>);

// The limit of row bytes per reply, however large the slot is. The holder serves other requests
// between two replies, so this limits how long a fetch delays them. 256 KiB take 18 us to copy, and
// 42 us to pass to tcp (deploy/adr/0012-queues.md).
inline constexpr uint32_t kFetchBodyBytesMax = 256u << 10;
// The limit of rows per reply; a row has at least 4 bytes.
inline constexpr uint32_t kFetchIndexCountMax = kFetchBodyBytesMax / 4;

// Requests a whole chunk, as a descriptor to map read-only: shm and loopback only.
struct MapEntry {
  uint32_t handle = 0;
  uint32_t reserved[7] = {};  // zero
};
static_assert(sizeof(MapEntry) == 32 && std::is_trivially_copyable_v<MapEntry>);

// The body of its reply, which passes a descriptor. Its memory has the chunk's tensors from the
// start on (proto/chunk_layout.h). It is sealed: no process can write or resize it.
struct MapReply {
  uint64_t bytes = 0;     // all tensors with their padding
  uint64_t reserved = 0;  // zero
};
static_assert(sizeof(MapReply) == 16 && std::is_trivially_copyable_v<MapReply>);

struct ReplyHeader {
  uint32_t magic = kReplyMagic;
  uint16_t version = kWireVersion;
  WireKind kind = WireKind::kProbe;
  uint8_t flags = 0;  // the request's; kFlagApproximate only if it was used
  uint64_t request_id = 0;
  uint64_t epoch = 0;
  uint32_t code = 0;  // absl::StatusCode; unless it is 0, the body is text
  uint32_t body_bytes = 0;
  uint32_t row_count = 0;
  uint16_t partial_count = 0;                               // partials of all segments
  KernelTargetId kernel_target = KernelTargetId::kUnknown;  // unknown if not an attend
  // This request's share of its batch's multiply-adds, in 255ths, rounded up: 255 if nothing else
  // was computed with it. 0 for errors and for kinds other than attend.
  uint8_t batch_share = 0;
  uint32_t compute_ns = 0;      // kernel time of the batch of this request; saturates
  uint32_t queue_ns = 0;        // from arrival to the kernel; saturates
  uint32_t queue_depth = 0;     // requests queued behind this one
  uint32_t retry_after_us = 0;  // with ResourceExhausted
  // The body's checksum (body_checksum.h) for a fetch over a lane that does not share memory; else
  // 0.
  uint32_t body_checksum = 0;
  uint32_t checksum = 0;  // low half of XXH3-64 of the 60 bytes before it
};
static_assert(sizeof(ReplyHeader) == 64 && std::is_trivially_copyable_v<ReplyHeader>);

// Sets the checksum and writes the header at the start of `slot`.
void EncodeHeader(RequestHeader header, std::span<std::byte> slot);
void EncodeHeader(ReplyHeader header, std::span<std::byte> slot);

// Decodes and checks the header of a request of `slot.size()` bytes that a peer sent. A field that
// a kind does not use must be zero, so that a later version can give it a meaning. For all kinds
// except attend and score these are the flags, the precision, the layer and every count.
//   InvalidArgument     malformed; the peer has a bug, so the lane is closed.
//   FailedPrecondition  a version that this build does not support; the peer must be upgraded.
absl::StatusOr<RequestHeader> DecodeRequestHeader(std::span<const std::byte> slot);

// As DecodeRequestHeader, for a reply. Does not check the body: see CheckReply.
absl::StatusOr<ReplyHeader> DecodeReplyHeader(std::span<const std::byte> slot);

struct FetchRequest {
  FetchEntry entry;
  // Points into the slot, where a peer on shm can still write. Copy the indices before you check
  // and use them.
  std::span<const int32_t> indices;
};
// Decodes a fetch request. The returned entry's ranges do not wrap, and its fields are consistent
// with each other and the body. The caller checks whether the chunk has those layers, tokens,
// columns and indices.
//   InvalidArgument     as above.
absl::StatusOr<FetchRequest> DecodeFetchRequest(const RequestHeader& header,
                                                std::span<const std::byte> slot);

// Decodes a map request.
//   InvalidArgument     as above.
absl::StatusOr<MapEntry> DecodeMapRequest(const RequestHeader& header,
                                          std::span<const std::byte> slot);

// Returns the layout from a reply that CheckReply accepted. Its fields are consistent with each
// other.
//   InvalidArgument     the fields are inconsistent; the lane is closed.
absl::StatusOr<MapReply> DecodeMapReply(std::span<const std::byte> slot);

// The reply that a requester expects, for comparison with the one received.
struct ExpectedReply {
  uint64_t request_id = 0;
  WireKind kind = WireKind::kAttend;
  uint8_t flags = 0;
  uint32_t row_count = 0;
  uint32_t partial_count = 0;
  // The body of the reply to an attend (LayOutPartial), a score or a request for candidates.
  uint64_t body_bytes = 0;
  FetchEntry fetch = {};  // the request, with the bytes sent of each row
  uint64_t row_bytes = 0;
  // Whether the reply to a fetch has a checksum: its lane does not share memory (SharesMemory). On
  // shared memory the rows were copied by one memcpy on this host. Reading them again at each end
  // would cost a third of the bandwidth.
  bool checksummed = true;
};
// Checks a reply; `body` is everything after the header. Returns the error in the reply, if any. OK
// means that the body has exactly the expected shape, and the right checksum if it is a fetch with
// one.
//   DataLoss            malformed or of another shape, or the body's checksum does not match; the
//                       lane is closed.
//   any code            the holder's own status with its text; control characters are replaced by
//                       '?'.
absl::Status CheckReply(const ReplyHeader& header, std::span<const std::byte> body,
                        const ExpectedReply& expected);
// The same for a body that the fabric wrote to separate spans (RequestLane::Land).
absl::Status CheckReply(const ReplyHeader& header, const ScatterList& body,
                        const ExpectedReply& expected);

// Writes an error reply and returns its length in bytes. Text beyond kErrorTextBytesMax is cut.
uint32_t EncodeErrorReply(const RequestHeader& request, const absl::Status& status,
                          uint32_t retry_after_us, std::span<std::byte> slot);

// Writes the echo of a probe, as much as fits in `slot`, and returns its length in bytes.
// `request_slot` is the request as received, `request` its decoded header.
uint32_t EncodeProbeReply(const RequestHeader& request, std::span<const std::byte> request_slot,
                          std::span<std::byte> slot);

// Returns how many bytes of rows one fetch may request over lanes with this `reply_bytes_max`.
uint32_t FetchBodyBytesMax(uint32_t reply_bytes_max);

}  // namespace ckv
