// Lists what the query rows of a call attend.
//
//   unit             query rows that attend the same rows: a segment, or some of its rows. Those
//   are
//                    one group of a selection, one token of a choice, or consecutive rows with one
//                    row limit
//   attended chunk   a chunk that a unit attends, or selected rows of it. Those of one unit are in
//                    the order of the fixed tree

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/plan/route_call.h"
#include "transport/wire_attend.h"

namespace ckv {

// The most attended chunks of one call: 100 MB of plan. 64 sequences of 65,536 chunks have that
// many.
inline constexpr uint64_t kAttendedChunkCountMax = uint64_t{1} << 22;

// The `peer_index` of cached chunks: they are attended locally, and no frame requests them.
inline constexpr uint32_t kCachedPeerIndex = 0xffffffff;

struct AttendedChunk {
  uint32_t context_index = 0;  // in the context's chunks
  // The chunk's selected rows, in the plan's own list. kChosen: rows among its holder's candidates.
  uint32_t index_begin = kDense;
  // Selected rows. With kChosen, those of all the holder's chunks, at the first of them; else 0.
  uint32_t k = 0;
  uint32_t copy = 0;  // the rotated copy of the query rows, in the KV split
  // Set by the router before AttendPlan::Cut.
  uint32_t peer_index = 0;
  uint32_t handle = 0;
  // Set by AttendNodes for kChosen. Chunks of one run have consecutive handles and ordinals, so
  // that one piece can name them.
  uint32_t run = 0;

  // The rows that a query row attends of a chunk of this many tokens.
  uint32_t row_count(uint32_t token_count) const { return index_begin == kDense ? token_count : k; }
};

struct PlannedUnit {
  uint32_t segment = 0;
  uint32_t row_begin = 0, row_count = 0;  // in the call's rows
  uint32_t attended_begin = 0, attended_end = 0;
  bool limited = false;  // has row limits: may mix dense and selected chunks
  // Attends a token of the segment's choice: chunks have kChosen, and selected rows if local.
  bool chosen = false;
  uint32_t token = 0;
  // Set by AttendNodes.
  uint32_t node_begin = 0, node_end = 0;  // in the order of the tree
  uint32_t split_begin = 0, split_end = 0;
  uint32_t cached_count = 0;  // cached chunks
};

// Part of an AttendPlan. Keeps its memory between calls. Its cost depends on the chunks, selected
// indices and rows of a call, never on all chunks of the corpus.
class AttendUnits {
 public:
  // As AttendPlan::Begin.
  absl::Status Begin(const RouteCall& call);
  std::span<AttendedChunk> attended() { return attended_; }
  std::span<const AttendedChunk> attended() const { return attended_; }
  std::span<PlannedUnit> units() { return units_; }
  std::span<const PlannedUnit> units() const { return units_; }
  // The selected rows of all attended chunks (AttendedChunk::index_begin), as indices in the chunk.
  std::span<const int32_t> selected_rows() const { return selected_rows_; }

 private:
  void AddDenseUnit(const RouteCall& call, uint32_t segment);
  absl::Status AddGroups(const RouteCall& call, uint32_t segment);
  void ReserveChunks(size_t chunk_count);
  absl::Status AddGroup(const RouteCall& call, uint32_t segment, uint32_t row_begin,
                        uint32_t row_count, uint32_t group);
  absl::Status AddLimited(const RouteCall& call, uint32_t segment);
  absl::Status AddLimitedUnit(const RouteCall& call, PlannedUnit unit, uint32_t limit);
  absl::Status AddChosen(const RouteCall& call, uint32_t segment);
  void AddChosenUnit(const RouteCall& call, PlannedUnit unit);
  uint32_t FirstRows(uint32_t count);
  void ListTouched(PlannedUnit& unit, std::span<const ContextState::RowPlace> places);

  uint64_t index_count_ = 0;  // indices of the call
  uint64_t look_count_ = 0;   // attended chunks, plus those hidden by limits
  std::vector<AttendedChunk> attended_;
  std::vector<PlannedUnit> units_;
  // Row indices in the chunk, chunk after chunk. Chunks that a limit cuts share one list 0, 1, 2,
  // ...
  std::vector<int32_t> selected_rows_;
  uint32_t first_rows_begin_ = 0, first_rows_count_ = 0;  // that list, in selected_rows_

  // Scratch. Each unit resets to zero the entries that it touched.
  std::vector<ContextState::RowPlace> places_;  // places of the indices of one group
  std::vector<uint32_t> count_;                 // [chunks] number of the group's indices
  std::vector<uint64_t> touched_;               // one bit per chunk
  std::vector<uint32_t> cursor_;                // [chunks] position in the selected rows
  std::vector<uint32_t> chosen_left_;           // [sources of a choice]
};

}  // namespace ckv
