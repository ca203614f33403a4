// Attend frames: many segments of query rows over many chunks, and their partials.
//
//   request   RequestHeader
//             SegmentEntry [segment_count]
//             PieceEntry [piece_count]
//             pad to 64
//             q bf16, for each segment [copy_count][row_count][d_qk]
//             pad to 64
//             indices i32 [index_count]
//   reply     ReplyHeader
//             for each segment, partial_count times:
//               o [row_count][d_v] | m f32 [row_count] | l f32 [row_count]
//
// A piece entry refers to one chunk, or to consecutive chunks with candidates. The entries are
// ordered by segment, then by partial, then by rising ordinal. o is bf16 or f32, as requested;
// row_count x d_v x 2 is padded to a multiple of 4.
//
// A partial is an aligned subtree of the fixed tree over chunk ordinals (attention/merge.h). The
// holder merges the entries of a partial by their ordinals, in f32, and rounds the result once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "proto/geometry.h"
#include "transport/wire.h"

namespace ckv {

inline constexpr uint32_t kSegmentCountMax = 1024;  // segments of one frame
inline constexpr uint32_t kCopyCountMax = 16;       // distinct position offsets of one segment
// The limits of one frame's pieces with kChosen: their chunks, and the chosen rows of its segments.
// 100 tokens of 2,048 rows in 300 chunks fit. Finding 16,384 rows in 2,048 chunks takes a holder
// 1.3 ms, on the thread that serves all sessions.
inline constexpr uint32_t kChosenChunkCountMax = 1u << 15;
inline constexpr uint32_t kChosenRowCountMax = 1u << 18;

// In PieceEntry::index_begin: all rows of the chunk.
inline constexpr uint32_t kDense = 0xffffffff;
// The same: rows among the candidates of its segment.
inline constexpr uint32_t kChosen = 0xfffffffe;
// In SegmentEntry::limit_begin: every row sees all its chunks.
inline constexpr uint32_t kNoLimits = 0xffffffff;

// Consecutive query rows of one context.
struct SegmentEntry {
  uint32_t row_count = 0;
  uint32_t piece_count = 0;
  uint32_t partial_count = 0;
  uint16_t copy_count = 0;  // copies of the rows, one per position offset
  // The number of rows per index, for selections of whole blocks. Reserved: 1.
  uint16_t index_rows = 1;
  // The position in the indices of a u32 [row_count] array: the rows that each query row sees.
  // Reserved: kNoLimits.
  uint32_t limit_begin = kNoLimits;
  // The segment attends the first chosen_count candidates of a token of an earlier score request
  // (transport/wire_score.h), among the chunks of its pieces. Each piece then has kChosen. All
  // three are 0 if there are no candidates.
  uint16_t token = 0;
  uint16_t chosen_count = 0;
  uint64_t candidates = 0;
};
static_assert(sizeof(SegmentEntry) == 32 && std::is_trivially_copyable_v<SegmentEntry>);

// One chunk that the query rows of one segment attend, or consecutive ones.
struct PieceEntry {
  uint32_t handle = 0;   // the ChunkHandle of the session
  uint32_t ordinal = 0;  // the chunk's position in the fixed tree; rises within a partial
  uint32_t partial = 0;  // its partial in the segment; begins at 0, rises by 1
  uint32_t copy = 0;     // the copy of the query rows that attends it
  // The position of the first index in the indices; kDense selects all rows of the chunk, and
  // kChosen those of the segment's candidates.
  uint32_t index_begin = kDense;
  uint32_t k = 0;           // indices per group; 0 if dense or chosen
  uint32_t group_rows = 1;  // query rows that share the indices of one group
  // With kChosen, the piece has this many chunks more. Their handles and ordinals follow one
  // another: handle + 1 with ordinal + 1, and so on. Otherwise 0.
  uint32_t more = 0;
};
static_assert(sizeof(PieceEntry) == 32 && std::is_trivially_copyable_v<PieceEntry>);

// The parts of an attend request, as offsets from the start of the slot.
struct AttendLayout {
  size_t segments = 0;
  size_t pieces = 0;
  size_t rows = 0;
  size_t indices = 0;
  size_t total_bytes = 0;
};
// Computes the offsets. `stored_row_count` counts every copy of every row. The result saturates:
// absurd counts give a total that no slot can hold, never a wrapped one.
AttendLayout LayOutAttend(uint32_t segment_count, uint32_t piece_count, uint64_t stored_row_count,
                          uint32_t index_count, uint32_t d_qk);

// The parts of one partial of an attend reply, as offsets from the start of that partial.
struct PartialLayout {
  size_t o = 0;
  size_t m = 0;
  size_t l = 0;
  size_t total_bytes = 0;  // multiple of 4
};
PartialLayout LayOutPartial(uint32_t row_count, uint32_t d_v, bool f32);

// A segment of a decoded request. Its fields are consistent with each other and the frame.
struct AttendSegment {
  uint32_t row_count = 0;
  uint32_t copy_count = 0;
  uint32_t piece_begin = 0, piece_end = 0;  // in AttendRequest::pieces
  uint32_t partial_count = 0;
  uint64_t stored_row_begin = 0;  // its first row in AttendRequest::rows
  // As in SegmentEntry.
  uint32_t token = 0, chosen_count = 0;
  uint64_t candidates = 0;
};

// A decoded attend request. Its layer, counts, offsets and lengths are all in range. The entries
// are copies. Rows and indices point into the slot; the kernel checks each index as it uses it.
struct AttendRequest {
  RequestHeader header;
  std::vector<AttendSegment> segments;
  std::vector<PieceEntry> pieces;
  uint32_t partial_count = 0;      // partials of all segments
  const uint16_t* rows = nullptr;  // bf16 [stored rows][d_qk]
  std::span<const int32_t> indices;
  // The rows that were chosen among candidates (server/score/chosen_rows.h). Pieces of a segment
  // with candidates then have their indices here. Decoding clears it.
  std::span<const int32_t> chosen;
};
// Decodes an attend request. `out` keeps its capacity, so a reused AttendRequest
// allocates nothing.
//   InvalidArgument     malformed; the peer has a bug, so the lane is closed.
//   Unimplemented       the request uses a reserved field, which a later build supports. Answer
//                       with this error; the lane stays open.
absl::Status DecodeAttendRequest(const RequestHeader& header, std::span<const std::byte> slot,
                                 const Geometry& geometry, AttendRequest& out);

// Returns the size of the reply's body in bytes.
uint64_t AttendReplyBytes(const AttendRequest& request, const Geometry& geometry);

}  // namespace ckv
