// Cuts the chunks of each unit into nodes of the merge tree, and nodes into KV splits, one or more
// for each holder. Not thread-safe. CutUnit, in order:
//   FindRanges finds ranges of chunks that one holder has, in one corpus
//   FindRuns   for a choice, finds chunks that one piece of the wire names
//   AddNodes   for each corpus, divides the tree until one holder has a whole subtree, and a frame
//              has space for it
//   AddNode    adds it to the holder's open split, or to a new one if a frame would hold too few
//              rows. A locally cached chunk is a node by itself

#include "client/plan/attend_nodes.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_format.h"
#include "attention/merge.h"
#include "client/plan/frame_buffers.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr uint32_t kNoSplit = 0xffffffff;
// Joins the trees of two corpora, above every level of either.
constexpr uint8_t kPartLevel = 32;
static_assert(kPartLevel + kContextPartCountMax < kTreeLevelMax);

// Rows of a chunk that a frame should hold at least.
uint32_t UsefulRows(const PlannedUnit& unit) { return std::min(unit.row_count, kUsefulRowCount); }

std::span<const ContextChunk> ChunksOf(const RouteCall& call, const PlannedUnit& unit) {
  return call.segments[unit.segment].context->chunks();
}

// Adds a node of these chunks to a split that has one. Returns false, and changes nothing, if a
// frame would no longer hold enough rows of it.
bool JoinSplit(const RouteCall& call, const PlannedUnit& unit, const PlannedPeer& peer,
               std::span<const AttendedChunk> attended, PlannedSplit& split) {
  PlannedSplit joined = split;
  if (!AddToSplit(call, unit, attended, joined) ||
      !SplitFits(call, joined, peer.shape, UsefulRows(unit))) {
    return false;
  }
  split = joined;
  return true;
}

}  // namespace

absl::Status AttendNodes::Cut(const RouteCall& call, std::span<const PlannedPeer> peers,
                              AttendUnits& units) {
  nodes_.clear();
  splits_.clear();
  cached_count_ = 0;
  const Cutting of = {call, peers, units.units(), units.attended()};
  for (uint32_t unit = 0; unit < of.units.size(); ++unit) CKV_RETURN_IF_ERROR(CutUnit(of, unit));
  return absl::OkStatus();
}

absl::Status AttendNodes::CutUnit(const Cutting& of, uint32_t unit_ordinal) {
  PlannedUnit& unit = of.units[unit_ordinal];
  const std::span<const ContextChunk> chunks = ChunksOf(of.call, unit);
  unit.node_begin = static_cast<uint32_t>(nodes_.size());
  unit.split_begin = static_cast<uint32_t>(splits_.size());
  open_split_.assign(of.peers.size(), kNoSplit);
  FindRanges(of, unit);
  if (unit.chosen) FindRuns(of, unit);
  for (uint32_t begin = unit.attended_begin, end = begin; begin < unit.attended_end; begin = end) {
    const uint32_t part = chunks[of.attended[begin].context_index].part;
    while (end < unit.attended_end && chunks[of.attended[end].context_index].part == part)
      end = unit.attended_begin + range_end_[end - unit.attended_begin];
    CKV_RETURN_IF_ERROR(AddNodes(of, unit_ordinal, begin, end));
  }
  unit.node_end = static_cast<uint32_t>(nodes_.size());
  unit.split_end = static_cast<uint32_t>(splits_.size());
  return absl::OkStatus();
}

// Finds the end of the range of chunks on one peer, in one corpus, that each chunk is in.
void AttendNodes::FindRanges(const Cutting& of, const PlannedUnit& unit) {
  const std::span<const ContextChunk> chunks = ChunksOf(of.call, unit);
  const std::span<const AttendedChunk> attended =
      of.attended.subspan(unit.attended_begin, unit.attended_end - unit.attended_begin);
  range_end_.resize(attended.size());
  for (size_t i = attended.size(); i-- > 0;) {
    const bool goes_on =
        i + 1 < attended.size() && attended[i].peer_index == attended[i + 1].peer_index &&
        chunks[attended[i].context_index].part == chunks[attended[i + 1].context_index].part;
    range_end_[i] = goes_on ? range_end_[i + 1] : static_cast<uint32_t>(i + 1);
  }
}

void AttendNodes::FindRuns(const Cutting& of, const PlannedUnit& unit) {
  const std::span<const ContextChunk> chunks = ChunksOf(of.call, unit);
  for (uint32_t i = unit.attended_begin + 1; i < unit.attended_end; ++i) {
    const AttendedChunk& last = of.attended[i - 1];
    const ContextChunk& a = chunks[last.context_index];
    const ContextChunk& b = chunks[of.attended[i].context_index];
    const bool follows = of.attended[i].handle == last.handle + 1 && b.ordinal == a.ordinal + 1 &&
                         of.attended[i].peer_index == last.peer_index && a.part == b.part &&
                         a.rotation == b.rotation;
    of.attended[i].run = last.run + (follows ? 0 : 1);
  }
}

// Adds the largest subtrees of [begin, end), chunks of one corpus, that one holder has whole.
absl::Status AttendNodes::AddNodes(const Cutting& of, uint32_t unit, uint32_t begin, uint32_t end) {
  if (end - begin == 1 || IsNode(of, of.units[unit], begin, end))
    return AddNode(of, unit, begin, end);
  const std::span<const ContextChunk> chunks = ChunksOf(of.call, of.units[unit]);
  const auto ordinal = [&](const AttendedChunk& chunk) {
    return chunks[chunk.context_index].ordinal;
  };
  const uint32_t first = ordinal(of.attended[begin]), last = ordinal(of.attended[end - 1]);
  // The right half begins at the first ordinal with the highest bit that differs.
  const uint32_t right = last & ~(std::bit_floor(first ^ last) - 1);
  const auto middle =
      std::partition_point(of.attended.begin() + begin, of.attended.begin() + end,
                           [&](const AttendedChunk& chunk) { return ordinal(chunk) < right; });
  const auto right_begin = static_cast<uint32_t>(middle - of.attended.begin());
  CKV_RETURN_IF_ERROR(AddNodes(of, unit, begin, right_begin));
  return AddNodes(of, unit, right_begin, end);
}

bool AttendNodes::IsNode(const Cutting& of, const PlannedUnit& unit, uint32_t begin,
                         uint32_t end) const {
  if (of.attended[begin].peer_index == kCachedPeerIndex) return false;
  if (unit.attended_begin + range_end_[begin - unit.attended_begin] < end) return false;
  const PlannedPeer& peer = of.peers[of.attended[begin].peer_index];
  if (end - begin > kPieceCountMax) return false;
  PlannedSplit alone;
  // Without a look at each chunk, if there is one rotation only.
  if (of.call.segments[unit.segment].context->rotations().size() == 1) alone.copy_count = 1;
  return AddToSplit(of.call, unit, of.attended.subspan(begin, end - begin), alone) &&
         SplitFits(of.call, alone, peer.shape, UsefulRows(unit));
}

absl::Status AttendNodes::AddNode(const Cutting& of, uint32_t unit_ordinal, uint32_t begin,
                                  uint32_t end) {
  PlannedUnit& unit = of.units[unit_ordinal];
  const std::span<AttendedChunk> attended = of.attended.subspan(begin, end - begin);
  const uint32_t peer_index = attended.front().peer_index;
  const std::span<const ContextChunk> chunks = ChunksOf(of.call, unit);
  const auto node_ordinal = static_cast<uint32_t>(nodes_.size());
  PlannedNode node = {.attended_begin = begin, .attended_end = end};
  if (node_ordinal > unit.node_begin) {
    const ContextChunk& last = chunks[of.attended[nodes_.back().attended_end - 1].context_index];
    const ContextChunk& first = chunks[attended.front().context_index];
    node.level = last.part == first.part ? TreeLevel(last.ordinal, first.ordinal)
                                         : static_cast<uint8_t>(kPartLevel + first.part);
  }
  if (peer_index == kCachedPeerIndex) {
    AddLocalNode(unit, node);
    return absl::OkStatus();
  }
  const LaneShape& shape = of.peers[peer_index].shape;
  uint32_t& open = open_split_[peer_index];
  if (open == kNoSplit ||
      !JoinSplit(of.call, unit, of.peers[peer_index], attended, splits_[open])) {
    open = static_cast<uint32_t>(splits_.size());
    PlannedSplit& split = splits_.emplace_back(
        PlannedSplit{.peer_index = peer_index, .unit = unit_ordinal, .first_node = node_ordinal});
    AddToSplit(of.call, unit, attended, split);
    if (!SplitFits(of.call, split, shape, 1)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("attend: one query row and its %d selected indices do not fit a slot: "
                          "request_bytes_max %d, reply_bytes_max %d",
                          split.index_count, shape.request_bytes_max, shape.reply_bytes_max));
    }
  } else {
    nodes_[splits_[open].last_node].next = node_ordinal;
  }
  PlannedSplit& split = splits_[open];
  node.split = open;
  node.place = split.node_count - 1;
  split.last_node = node_ordinal;
  // The first copy is the default.
  for (AttendedChunk& chunk : attended) {
    if (split.copy_count == 1) break;
    const uint32_t rotation = chunks[chunk.context_index].rotation;
    const auto copy = std::find(split.copies.begin(), split.copies.end(), rotation);
    chunk.copy = static_cast<uint32_t>(copy - split.copies.begin());
  }
  nodes_.push_back(node);
  return absl::OkStatus();
}

void AttendNodes::AddLocalNode(PlannedUnit& unit, PlannedNode node) {
  node.split = PlannedNode::kCached;
  node.place = cached_count_++;
  ++unit.cached_count;
  nodes_.push_back(node);
}

}  // namespace ckv
