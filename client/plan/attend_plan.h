// The plan of one call: how it is cut into frames that fit lane slots.
//
// Three steps make it: AttendUnits lists what the rows attend, AttendNodes divides that among the
// holders, and AttendFrames packs it. WriteFrame (client/plan/frame_writer.h) writes a frame.

#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "client/plan/attend_frames.h"
#include "client/plan/attend_nodes.h"
#include "client/plan/attend_units.h"
#include "client/plan/route_call.h"
#include "proto/base/status.h"

namespace ckv {

// Plans one call at a time. Call Begin; set the peer index and handle of each chunk (the router
// does); call Cut. Reuses its memory between calls. Not thread-safe.
//
// The cost of a call depends on what it touches: attended chunks, selected indices and rows, never
// all chunks of the corpus.
class AttendPlan {
 public:
  // Lists the units and the chunks that they attend. The call must have passed CheckRouteCall.
  //   InvalidArgument     an index or a row limit is outside the context, or there are too many
  //                       indices or attended chunks.
  absl::Status Begin(const RouteCall& call) { return units_.Begin(call); }
  std::span<AttendedChunk> attended() { return units_.attended(); }
  std::span<const AttendedChunk> attended() const { return units_.attended(); }
  std::span<const PlannedUnit> units() const { return units_.units(); }
  std::span<const AttendedChunk> AttendedBy(const PlannedUnit& unit) const {
    return attended().subspan(unit.attended_begin, unit.attended_end - unit.attended_begin);
  }

  // Cuts the call into blocks and frames. `call` is that of Begin. `peers` are by peer index, with
  // their shapes; Cut sets the rest. Spans of this class are valid until the next Begin or Cut.
  //   InvalidArgument     a frame of a single row does not fit; names the limit.
  absl::Status Cut(const RouteCall& call, std::span<PlannedPeer> peers) {
    CKV_RETURN_IF_ERROR(nodes_.Cut(call, peers, units_));
    frames_.Cut(call, units_, nodes_, peers);
    return absl::OkStatus();
  }
  std::span<const PlannedNode> nodes() const { return nodes_.nodes(); }
  uint32_t cached_count() const { return nodes_.cached_count(); }  // cached nodes of the call
  // The selected rows of all attended chunks (AttendedChunk::index_begin).
  std::span<const int32_t> selected_rows() const { return units_.selected_rows(); }
  // The selected rows of one attended chunk, as indices in the chunk. The chunk must not be dense
  // (AttendedChunk::index_begin).
  std::span<const int32_t> IndicesOf(const AttendedChunk& chunk) const {
    return selected_rows().subspan(chunk.index_begin, chunk.k);
  }
  std::span<const PlannedSplit> splits() const { return nodes_.splits(); }
  std::span<const PlannedBlock> blocks() const { return frames_.blocks(); }
  std::span<const PlannedPart> parts() const { return frames_.parts(); }
  std::span<const PlannedFrame> frames() const { return frames_.frames(); }
  // The part that returns the partials of a split for a block.
  uint32_t PartFor(const PlannedBlock& block, uint32_t split) const {
    return frames_.PartFor(block, split - units()[block.unit].split_begin);
  }
  std::span<const PlannedPart> PartsOf(const PlannedFrame& frame) const {
    return parts().subspan(frame.part_begin, frame.part_end - frame.part_begin);
  }

 private:
  AttendUnits units_;
  AttendNodes nodes_;
  AttendFrames frames_;
};

}  // namespace ckv
