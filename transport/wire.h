// The data plane's frames: what lies in a request slot and in a reply slot, byte by byte.
//
// Little-endian, fixed headers, versioned; every offset is a function of the header's counts, so
// one transfer carries all of a message. Decoding distrusts every field before anything is sized by
// it, and copies what it checks: on shm the peer can still write.
//
//   request   RequestHeader | body
//     probe     any bytes
//     attend    PieceEntry[piece_count] | pad to 64 | q bf16 [copy_count][row_count][d_qk] | pad to
//               64 | indices i32 [index_count]
//     fetch     FetchEntry | indices i32 [index_count]
//     map       MapEntry
//   reply     ReplyHeader | body
//     probe     the request's bytes, as far as the slot holds them
//     attend    partial_count times: o [row_count][d_v] | m f32 [row_count] | l f32 [row_count]
//               (o in bf16 or f32 as asked; row_count x d_v x 2 is padded to 4)
//     fetch     the rows, [layer][token][row_bytes], or the slice of each that was asked for
//     map       MappedLayout, and a descriptor beside the reply
//     error     UTF-8 text, at most kErrorTextBytesMax

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "transport/scatter_list.h"

namespace ckv {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kRequestMagic = 0x51564b43;  // "CKVQ"
inline constexpr uint32_t kReplyMagic = 0x52564b43;    // "CKVR"
inline constexpr uint16_t kWireVersion = 4;

inline constexpr uint32_t kQueryRowCountMax = 4096;   // rows of one frame
inline constexpr uint32_t kPieceCountMax = 1024;      // chunks of one frame
inline constexpr uint32_t kCopyCountMax = 16;         // distinct position offsets of one frame
inline constexpr uint32_t kIndexCountMax = 1u << 22;  // selected indices of one frame
inline constexpr uint32_t kErrorTextBytesMax = 512;

enum class WireKind : uint8_t { kProbe = 1, kAttend = 2, kFetch = 3, kMap = 4 };

// RequestHeader::flags
inline constexpr uint8_t kFlagPartialF32 = 1;  // o comes back in f32
// One partial a piece, in order, instead of one merged by the holder: the requester merges all
// pieces in the order of the corpus, so the answer's bits do not depend on the placement (I2).
inline constexpr uint8_t kFlagPerPiece = 2;
// One of several frames that a call was cut into: its requester waits for the last of them, so a
// holder lets it wait longer, behind what stands alone.
inline constexpr uint8_t kFlagBulk = 4;
// Packed rows that a holder has in memory may stand for exact ones that it has on disk. In a reply:
// some did.
inline constexpr uint8_t kFlagApproximate = 8;
inline constexpr uint8_t kFlagsKnown =
    kFlagPartialF32 | kFlagPerPiece | kFlagBulk | kFlagApproximate;

struct RequestHeader {
  uint32_t magic = kRequestMagic;
  uint16_t version = kWireVersion;
  WireKind kind = WireKind::kProbe;
  uint8_t flags = 0;
  uint64_t request_id = 0;
  uint64_t epoch = 0;
  uint64_t session = 0;
  uint32_t deadline_us = 0;  // remaining, at the moment of sending
  uint32_t body_bytes = 0;
  uint32_t row_count = 0;  // query rows: tokens x heads
  uint16_t layer = 0;
  uint16_t copy_count = 0;  // copies of the rows, one a position offset
  uint32_t piece_count = 0;
  uint32_t index_count = 0;
  uint32_t reserved = 0;  // zero
  uint32_t checksum = 0;  // low half of XXH3-64 of the 60 bytes before it
};
static_assert(sizeof(RequestHeader) == 64 && std::is_trivially_copyable_v<RequestHeader>);

inline constexpr uint32_t kDense = 0xffffffff;

// One chunk of an attend request.
struct PieceEntry {
  uint32_t handle = 0;            // ChunkHandle of the session
  uint32_t copy = 0;              // which copy of the query rows
  uint32_t index_begin = kDense;  // into the indices; kDense: all rows of the chunk
  uint32_t k = 0;                 // indices a group; 0 if dense
  uint32_t group_rows = 1;        // query rows that share a group's indices
  uint32_t reserved[3] = {};      // zero
};
static_assert(sizeof(PieceEntry) == 32 && std::is_trivially_copyable_v<PieceEntry>);

// Rows to send back: layers x tokens of one chunk, or chosen rows of one layer of it; of each row
// all, or the same slice. Chosen rows and slices lie apart in the store: the holder gathers them
// into its reply slot, so that however many there are they are one transfer.
struct FetchEntry {
  uint32_t handle = 0;
  uint32_t layer_begin = 0;
  uint32_t layer_count = 0;
  uint32_t token_begin = 0;
  uint32_t token_count = 0;
  // 0: a run. Else token_count: the rows of the indices that follow, in their order, one that comes
  // twice twice; layer_count is 1 and token_begin 0.
  uint32_t index_count = 0;
  // Bytes [column_begin, column_begin + column_bytes) of each row, multiples of 4; 0, 0: all.
  uint32_t column_begin = 0;
  uint32_t column_bytes = 0;

  // The rows do not lie in the store as they are sent.
  bool gathered() const { return index_count != 0 || column_bytes != 0; }
  // Of one row as sent, where the store's has row_bytes.
  uint64_t sent_row_bytes(uint64_t row_bytes) const {
    return column_bytes != 0 ? column_bytes : row_bytes;
  }
};
static_assert(sizeof(FetchEntry) == 32 && std::is_trivially_copyable_v<FetchEntry>);

// Rows that one reply carries at most, whatever the slot holds: the holder serves others between
// two replies, so this bounds how long a push keeps them waiting (128 KiB are 12 us to copy and
// check), and what is under way stays in the caches: larger ones were slower.
inline constexpr uint32_t kFetchBodyBytesMax = 128u << 10;
// Rows that one reply carries at most have at least 4 bytes each.
inline constexpr uint32_t kFetchIndexCountMax = kFetchBodyBytesMax / 4;

// A whole chunk, as a descriptor to map read-only: shm only.
struct MapEntry {
  uint32_t handle = 0;
  uint32_t reserved[7] = {};  // zero
};
static_assert(sizeof(MapEntry) == 32 && std::is_trivially_copyable_v<MapEntry>);

// What the passed descriptor's memory holds, from its start: layer x layer_stride_bytes, each
// layer_bytes long. It is sealed: nobody can write it or change its size any more.
struct MappedLayout {
  uint64_t total_bytes = 0;
  uint64_t layer_bytes = 0;
  uint64_t layer_stride_bytes = 0;
  uint32_t layers = 0;
  uint32_t reserved = 0;  // zero
};
static_assert(sizeof(MappedLayout) == 32 && std::is_trivially_copyable_v<MappedLayout>);

struct ReplyHeader {
  uint32_t magic = kReplyMagic;
  uint16_t version = kWireVersion;
  WireKind kind = WireKind::kProbe;
  uint8_t flags = 0;  // of the request; kFlagApproximate only if it was made use of
  uint64_t request_id = 0;
  uint64_t epoch = 0;
  uint32_t code = 0;  // absl::StatusCode; the body is text unless 0
  uint32_t body_bytes = 0;
  uint32_t row_count = 0;
  uint32_t partial_count = 0;
  uint32_t compute_ns = 0;      // kernel time of the batch this request was in; saturates
  uint32_t queue_ns = 0;        // from arrival to the kernel; saturates
  uint32_t queue_depth = 0;     // requests waiting behind this one
  uint32_t retry_after_us = 0;  // with ResourceExhausted
  // Fetch over a lane that does not share memory: of the body, see body_checksum.h; else 0.
  uint32_t body_checksum = 0;
  uint32_t checksum = 0;  // low half of XXH3-64 of the 60 bytes before it
};
static_assert(sizeof(ReplyHeader) == 64 && std::is_trivially_copyable_v<ReplyHeader>);

// Where the parts of an attend request lie, from the start of the slot.
struct AttendLayout {
  size_t pieces = 0;
  size_t rows = 0;
  size_t indices = 0;
  size_t total_bytes = 0;
};
// Saturating: absurd counts give a total no slot can hold, never a wrapped one.
AttendLayout LayOutAttend(uint32_t piece_count, uint32_t copy_count, uint32_t row_count,
                          uint32_t index_count, uint32_t d_qk);

// Where the parts of one partial of an attend reply lie, from the start of that partial.
struct PartialLayout {
  size_t o = 0;
  size_t m = 0;
  size_t l = 0;
  size_t total_bytes = 0;  // multiple of 4
};
PartialLayout LayOutPartial(uint32_t row_count, uint32_t d_v, bool f32);

// Stamps the checksum and writes the header at the start of `slot`.
void EncodeHeader(RequestHeader header, std::span<std::byte> slot);
void EncodeHeader(ReplyHeader header, std::span<std::byte> slot);

// Decodes and checks the header of a request of `slot.size()` bytes, as a peer sent it. Fields that
// a kind does not use must be zero (all but attend: flags, layer and every count), so that a later
// version can give them a meaning.
//   InvalidArgument     malformed; the peer has a bug, so the lane is closed.
//   FailedPrecondition  another wire version; the peer must be upgraded.
absl::StatusOr<RequestHeader> DecodeRequestHeader(std::span<const std::byte> slot);

// The same for a reply. The body is not judged: see CheckReply.
absl::StatusOr<ReplyHeader> DecodeReplyHeader(std::span<const std::byte> slot);

// An attend request whose layer, counts, offsets and lengths are all in range. The pieces are a
// copy; rows and indices point into the slot (index values are checked by the kernel as it uses
// them).
struct AttendRequest {
  RequestHeader header;
  std::vector<PieceEntry> pieces;
  const uint16_t* rows = nullptr;  // bf16 [copy_count][row_count][d_qk]
  std::span<const int32_t> indices;
};
// `out.pieces` keeps its capacity, so a reused AttendRequest allocates nothing.
//   InvalidArgument     as above.
absl::Status DecodeAttendRequest(const RequestHeader& header, std::span<const std::byte> slot,
                                 const Geometry& geometry, AttendRequest& out);

struct FetchRequest {
  FetchEntry entry;
  // In the slot, where the peer can still write on shm: copied before they are judged and used.
  std::span<const int32_t> indices;
};
// The entry's ranges do not wrap and its fields fit each other and the body; whether the chunk has
// those layers, tokens, columns and indices is the caller's to check.
//   InvalidArgument     as above.
absl::StatusOr<FetchRequest> DecodeFetchRequest(const RequestHeader& header,
                                                std::span<const std::byte> slot);

//   InvalidArgument     as above.
absl::StatusOr<MapEntry> DecodeMapRequest(const RequestHeader& header,
                                          std::span<const std::byte> slot);

// Of a reply that CheckReply found good: the layout, whose fields fit each other.
//   InvalidArgument     they do not; the lane is closed.
absl::StatusOr<MappedLayout> DecodeMapReply(std::span<const std::byte> slot);

// What a requester asked of a reply, to hold it against.
struct ExpectedReply {
  uint64_t request_id = 0;
  WireKind kind = WireKind::kAttend;
  uint8_t flags = 0;
  uint32_t row_count = 0;
  uint32_t partial_count = 0;
  uint32_t d_v = 0;
  FetchEntry fetch = {};  // what was asked for, and of how many bytes a row is as sent
  uint64_t row_bytes = 0;
  // A fetch's lane does not share memory (SharesMemory). Where it does, the rows were copied by one
  // memcpy on this host, and to read them once more at each end would cost a third of the
  // bandwidth.
  bool checksummed = true;
};
// `body` is all that came behind the header. The status the reply carries, or what is wrong with
// it; OK means the body has exactly the expected shape (and checksum, for a fetch that has one).
//   InvalidArgument     malformed or of another shape; the lane is closed.
//   DataLoss            the body's checksum does not match.
//   any code            the holder's own, with its text; control characters in it became '?'.
absl::Status CheckReply(const ReplyHeader& header, std::span<const std::byte> body,
                        const ExpectedReply& expected);
// The same where the fabric landed the body in pieces.
absl::Status CheckReply(const ReplyHeader& header, const ScatterList& body,
                        const ExpectedReply& expected);

// Writes an error reply and returns its bytes. Text past kErrorTextBytesMax is cut.
uint32_t EncodeErrorReply(const RequestHeader& request, const absl::Status& status,
                          uint32_t retry_after_us, std::span<std::byte> slot);

// Writes the echo of a probe, as far as `slot` holds it, and returns its bytes. `request_slot` is
// the request as it came, `request` its decoded header.
uint32_t EncodeProbeReply(const RequestHeader& request, std::span<const std::byte> request_slot,
                          std::span<std::byte> slot);

// The bytes of rows that one fetch over lanes of this shape may ask for.
uint32_t FetchBodyBytesMax(uint32_t reply_bytes_max);

}  // namespace ckv
