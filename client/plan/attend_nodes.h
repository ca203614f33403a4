// Divides the chunks of a call among their holders, as subtrees of the fixed tree.
//
//   node     the largest aligned subtree of the tree whose chunks are all requested from one
//            holder, which returns one partial for it
//   split    a KV split: nodes of one unit that one frame requests from one holder
//
// A peer is a holder of the call. Its peer index is its ordinal there (Exchange::Add). A cached
// chunk (in the local row cache) is a node by itself, without a split.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/plan/attend_units.h"
#include "client/plan/route_call.h"
#include "transport/fabric.h"
#include "transport/wire_attend.h"

namespace ckv {

struct PlannedNode {
  static constexpr uint32_t kCached = 0xffffffff;
  uint32_t attended_begin = 0, attended_end = 0;
  uint32_t split = 0;  // kCached if it is cached
  uint32_t place = 0;  // index among the partials of the split, or of the cached nodes
  uint32_t next = 0;   // the split's next node
  uint8_t level = 0;   // level of the join with the unit's previous node (MergeTree)
};

struct PlannedSplit {
  uint32_t peer_index = 0;
  uint32_t unit = 0;
  uint32_t first_node = 0, last_node = 0;
  uint32_t node_count = 0;
  uint32_t chunk_count = 0;
  uint32_t piece_count = 0;  // one for each chunk, or for a choice, for each run
  uint32_t index_count = 0;
  uint32_t chosen_count = 0;  // the holder's rows of a choice, of any number of splits; else 0
  uint32_t copy_count = 0;
  std::array<uint32_t, kCopyCountMax> copies = {};  // rotations of the context
};

// The facts about a holder that the plan needs.
struct PlannedPeer {
  LaneShape shape;
  // Set by AttendFrames.
  uint32_t frame_begin = 0, frame_end = 0;  // in frames(), by ascending blocks
  uint32_t frames_per_block = 0;            // the most frames that carry rows of one block
  uint64_t row_count = 0;                   // rows of all frames
};

// Part of an AttendPlan. Keeps its memory between calls.
class AttendNodes {
 public:
  // Makes the nodes and splits of all units, whose chunks have their peer indices. Sets the nodes
  // and splits of each unit, and the copies of each chunk.
  //   As AttendPlan::Cut.
  absl::Status Cut(const RouteCall& call, std::span<const PlannedPeer> peers, AttendUnits& units);
  std::span<const PlannedNode> nodes() const { return nodes_; }
  std::span<const PlannedSplit> splits() const { return splits_; }
  uint32_t cached_count() const { return cached_count_; }  // cached nodes of the call

 private:
  // The arguments of Cut.
  struct Cutting {
    const RouteCall& call;
    std::span<const PlannedPeer> peers;
    std::span<PlannedUnit> units;
    std::span<AttendedChunk> attended;
  };
  absl::Status CutUnit(const Cutting& of, uint32_t unit);
  void FindRanges(const Cutting& of, const PlannedUnit& unit);
  static void FindRuns(const Cutting& of, const PlannedUnit& unit);
  absl::Status AddNodes(const Cutting& of, uint32_t unit, uint32_t begin, uint32_t end);
  void AddLocalNode(PlannedUnit& unit, PlannedNode node);
  bool IsNode(const Cutting& of, const PlannedUnit& unit, uint32_t begin, uint32_t end) const;
  absl::Status AddNode(const Cutting& of, uint32_t unit, uint32_t begin, uint32_t end);

  std::vector<PlannedNode> nodes_;
  std::vector<PlannedSplit> splits_;
  uint32_t cached_count_ = 0;
  // Scratch.
  std::vector<uint32_t> range_end_;   // [chunks of a unit] end of the chunk's range on one peer
  std::vector<uint32_t> open_split_;  // [peers] for the unit being cut
};

}  // namespace ckv
