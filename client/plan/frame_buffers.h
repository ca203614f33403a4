// The arithmetic of what fits a slot.

#pragma once

#include <cstdint>
#include <span>

#include "client/plan/attend_frames.h"
#include "client/plan/attend_nodes.h"
#include "client/plan/attend_units.h"
#include "client/plan/route_call.h"
#include "transport/fabric.h"

namespace ckv {

// The fewest rows that keep the holder's kernel off its slow path for single rows: one token's
// heads. A KV split gets fewer chunks rather than fewer rows than this.
inline constexpr uint32_t kUsefulRowCount = 16;

// Returns the candidates of the holder that has a chunk of a unit of a choice.
const ChosenCandidates& CandidatesAt(const RouteCall& call, const PlannedUnit& unit,
                                     const AttendedChunk& chunk);

// Adds a node of these chunks to the split's counts. Returns false if it would need more than
// kCopyCountMax copies of the query rows; the split is then spoiled.
bool AddToSplit(const RouteCall& call, const PlannedUnit& unit,
                std::span<const AttendedChunk> attended, PlannedSplit& split);

// Adds the pieces, indices and chosen rows of a split to a frame.
void AddPieces(const PlannedSplit& split, PlannedFrame& frame);

// Returns true if a frame of nothing else holds this many rows of the split.
bool SplitFits(const RouteCall& call, const PlannedSplit& split, const LaneShape& shape,
               uint32_t row_count);

// Returns the bytes of the partials of this many rows of a split.
uint64_t PartialBytes(const RouteCall& call, const PlannedSplit& split, uint32_t row_count);

// Returns true if the frame, with one segment a part, fits slots of this shape and the limits of a
// frame.
bool FrameFits(const RouteCall& call, const PlannedFrame& frame, uint32_t part_count,
               const LaneShape& shape);

}  // namespace ckv
