// Plans how one call is cut into frames that fit lane slots.
//
//   unit     query rows that attend the same rows: a segment, one group of its selection, or its
//            consecutive rows with one row limit
//   piece    one chunk that a unit attends; pieces are in the order of the fixed tree
//   node     the largest aligned subtree of the tree whose pieces are all requested from one
//            holder, which returns one partial for it
//   share    nodes of one unit that one frame requests from one holder
//   block    consecutive rows of one unit, merged at a time
//   part     consecutive blocks of one share in one frame: a segment of the wire
//   frame    parts for one holder, as many as fit a slot
//
// A "line" is the peer index: the ordinal of a holder in the call (Exchange::Add). A near piece (in
// the local row cache) is a node by itself, without a share.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "client/context/route_call.h"
#include "transport/fabric.h"
#include "transport/wire_attend.h"

namespace ckv {

// The most pieces of one call: 100 MB of plan. 64 sequences of 65,536 chunks have that many.
inline constexpr uint64_t kPlannedPieceCountMax = uint64_t{1} << 22;

// The `line` of near pieces: they are attended locally, and no frame requests them.
inline constexpr uint32_t kNearLine = 0xffffffff;

struct PlannedPiece {
  uint32_t chunk = 0;             // index in the context's chunks
  uint32_t index_begin = kDense;  // the piece's selected rows, in the plan's own list
  uint32_t k = 0;
  uint32_t copy = 0;  // the rotated copy of the query rows, in the share
  // Set by the router before Cut.
  uint32_t line = 0;
  uint32_t handle = 0;
};

struct PlannedUnit {
  uint32_t segment = 0;
  uint32_t row_begin = 0, row_count = 0;  // in the call's rows
  uint32_t piece_begin = 0, piece_end = 0;
  bool limited = false;  // has row limits: may mix dense and selected pieces
  // Set by Cut.
  uint32_t node_begin = 0, node_end = 0;  // in the order of the tree
  uint32_t share_begin = 0, share_end = 0;
  uint32_t near_count = 0;  // near pieces
};

struct PlannedNode {
  static constexpr uint32_t kNear = 0xffffffff;
  uint32_t piece_begin = 0, piece_end = 0;
  uint32_t share = 0;  // kNear if it is near
  uint32_t place = 0;  // index among the partials of the share, or of the near nodes
  uint32_t next = 0;   // the share's next node
  uint8_t level = 0;   // level of the join with the unit's previous node (MergeTree)
};

struct PlannedShare {
  uint32_t line = 0;
  uint32_t unit = 0;
  uint32_t first_node = 0, last_node = 0;
  uint32_t node_count = 0;
  uint32_t piece_count = 0;
  uint32_t index_count = 0;
  uint32_t copy_count = 0;
  std::array<uint32_t, kCopyCountMax> copies = {};  // rotations of the context
};

struct PlannedBlock {
  uint32_t unit = 0;
  uint32_t row_begin = 0, row_count = 0;  // in the call's rows
  uint32_t arrival_begin = 0;             // in arrivals(): one per share of the unit
};

struct PlannedPart {
  uint32_t share = 0;
  uint32_t frame = 0;
  uint32_t row_begin = 0, row_count = 0;
  uint32_t block_begin = 0, block_end = 0;
  uint32_t reply_offset = 0;  // from the start of the reply's body to the first partial
};

struct PlannedFrame {
  uint32_t line = 0;
  uint32_t part_begin = 0, part_end = 0;
  uint32_t row_count = 0;         // rows of all parts
  uint64_t stored_row_count = 0;  // including their rotated copies
  uint32_t piece_count = 0;
  uint32_t index_count = 0;
  uint32_t partial_count = 0;
  uint32_t reply_bytes = 0;  // bytes of the body
};

// The facts about a holder that the plan needs.
struct PlannedLine {
  LaneShape shape;
  uint16_t wire_version = kWireVersion;
  // Set by Cut.
  uint32_t frame_begin = 0, frame_end = 0;  // in frames(), by ascending blocks
  uint32_t frames_per_block = 0;            // the most frames that carry rows of one block
  uint64_t row_count = 0;                   // rows of all frames
};

// Plans one call at a time. Call Begin; set the line and handle of each piece (the router does);
// call Cut. Reuses its memory between calls. Not thread-safe.
//
// The cost of a call depends on what it touches: pieces, selected indices and rows, never all
// chunks of the corpus.
class AttendPlan {
 public:
  // Lists the units and their pieces. The call must have passed CheckRouteCall.
  //   InvalidArgument     an index or a row limit is outside the context, or there are too many
  //                       indices or pieces.
  absl::Status Begin(const RouteCall& call);
  std::span<PlannedPiece> pieces() { return pieces_; }
  std::span<const PlannedPiece> pieces() const { return pieces_; }
  std::span<const PlannedUnit> units() const { return units_; }
  std::span<const PlannedPiece> PiecesOf(const PlannedUnit& unit) const {
    return std::span(pieces_).subspan(unit.piece_begin, unit.piece_end - unit.piece_begin);
  }

  // Cuts the call into blocks and frames.
  //   InvalidArgument     a frame of a single row does not fit; names the limit.
  absl::Status Cut(const RouteCall& call, std::span<PlannedLine> lines);
  std::span<const PlannedNode> nodes() const { return nodes_; }
  uint32_t near_count() const { return near_count_; }  // near nodes of the call
  // The selected rows of a piece of a selection, as indices in its chunk.
  std::span<const int32_t> IndicesOf(const PlannedPiece& piece) const {
    return std::span(selected_rows_).subspan(piece.index_begin, piece.k);
  }
  std::span<const PlannedShare> shares() const { return shares_; }
  std::span<const PlannedBlock> blocks() const { return blocks_; }
  std::span<const PlannedPart> parts() const { return parts_; }
  std::span<const PlannedFrame> frames() const { return frames_; }
  // The part that returns the partials of a share (by its ordinal in the unit) for a block.
  uint32_t PartFor(const PlannedBlock& block, uint32_t share) const {
    return arrivals_[block.arrival_begin + share - units_[block.unit].share_begin];
  }
  std::span<const PlannedPart> PartsOf(const PlannedFrame& frame) const {
    return std::span(parts_).subspan(frame.part_begin, frame.part_end - frame.part_begin);
  }

  // Writes the body of a frame into `slot`, in host or pinned memory. Writes its query rows on
  // `stream`: they are in place only after a Wait. Returns the header, in which the caller must set
  // the ids before encoding it.
  //   Errors of Backend::Rotate.
  absl::StatusOr<RequestHeader> WriteFrame(const RouteCall& call, const PlannedFrame& frame,
                                           uint16_t wire_version, std::span<std::byte> slot,
                                           MemoryKind slot_memory, ComputeStream& stream) const;

 private:
  void AddDenseUnit(const RouteCall& call, uint32_t segment);
  absl::Status AddGroups(const RouteCall& call, uint32_t segment);
  absl::Status AddGroup(const RouteCall& call, uint32_t segment, uint32_t row_begin,
                        uint32_t row_count, uint32_t group);
  absl::Status AddLimited(const RouteCall& call, uint32_t segment);
  absl::Status AddLimitedUnit(const RouteCall& call, PlannedUnit unit, uint32_t limit);
  uint32_t FirstRows(uint32_t count);
  void ListTouched(PlannedUnit& unit, std::span<const ContextState::RowPlace> places);

  absl::Status CutUnit(const RouteCall& call, uint32_t unit, std::span<const PlannedLine> lines);
  void FindRuns(const RouteSegment& segment, const PlannedUnit& unit);
  absl::Status AddNodes(const RouteCall& call, uint32_t unit, std::span<const PlannedLine> lines,
                        uint32_t begin, uint32_t end);
  void AddNearNode(uint32_t unit, PlannedNode node);
  bool IsNode(const RouteCall& call, uint32_t unit, std::span<const PlannedLine> lines,
              uint32_t begin, uint32_t end) const;
  absl::Status AddNode(const RouteCall& call, uint32_t unit, std::span<const PlannedLine> lines,
                       uint32_t begin, uint32_t end);
  bool JoinShare(const RouteCall& call, PlannedShare& share, const PlannedLine& line,
                 uint32_t begin, uint32_t end);
  void AddBlocks(const RouteCall& call, uint32_t unit, std::span<const PlannedLine> lines);
  uint32_t RowsThatFit(const RouteCall& call, const PlannedShare& share,
                       const LaneShape& shape) const;
  void SortSharesByLine(std::span<const PlannedLine> lines);
  void FillFrames(const RouteCall& call, uint32_t line, PlannedLine& to);
  void AddToFrame(const RouteCall& call, uint32_t line, const PlannedLine& to, uint32_t share,
                  uint32_t block);

  uint64_t index_count_ = 0;  // indices of the call
  uint64_t look_count_ = 0;   // pieces, plus chunks hidden by limits
  std::vector<PlannedPiece> pieces_;
  std::vector<PlannedUnit> units_;
  // Row indices in the chunk, piece by piece. Pieces that a limit cuts share one list 0, 1, 2, ...
  std::vector<int32_t> selected_rows_;
  uint32_t first_rows_begin_ = 0, first_rows_count_ = 0;  // that list, in selected_rows_
  std::vector<PlannedNode> nodes_;
  uint32_t near_count_ = 0;
  std::vector<PlannedShare> shares_;
  std::vector<PlannedBlock> blocks_;
  std::vector<uint32_t> blocks_of_unit_;  // the first block of each unit, plus one entry
  std::vector<PlannedPart> parts_;
  std::vector<PlannedFrame> frames_;
  std::vector<uint32_t> arrivals_;

  // Scratch. Each unit resets to zero the entries that it touched.
  std::vector<ContextState::RowPlace> places_;  // places of the indices of one group
  std::vector<uint32_t> count_;                 // [chunks] number of the group's indices
  std::vector<uint64_t> touched_;               // one bit per chunk
  std::vector<uint32_t> cursor_;                // [chunks] position in the pieces of the group
  std::vector<uint32_t> run_end_;     // [pieces of a unit] end of the piece's range on one line
  std::vector<uint32_t> open_share_;  // [lines] for the unit being cut
  std::vector<uint32_t> shares_by_line_;
  std::vector<uint32_t> line_shares_begin_;  // [lines + 1] start in shares_by_line_
};

}  // namespace ckv
