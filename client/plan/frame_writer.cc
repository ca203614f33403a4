// Writes one frame of an attend into its slot. WriteFrame lays out the slot, and fills the header,
// which it returns. Then it writes for each part, in order:
//   the segment entry
//   the query rows, rotated on the stream for each copy. They are complete once the stream is done
//   the indices and entries of its chunks, node by node

#include "client/plan/frame_writer.h"

#include <algorithm>
#include <cstring>

#include "client/plan/frame_buffers.h"
#include "proto/base/status.h"
#include "transport/wire_attend.h"

namespace ckv {
namespace {

// Writes the parts of one frame, one after another.
class PartWriter {
 public:
  PartWriter(const RouteCall& call, std::byte* entries, const RowPlace& rows, int32_t* indices)
      : call_(call), entries_(entries), rows_(rows), indices_(indices) {}

  absl::Status WriteRows(const ContextState& context, const PlannedSplit& split,
                         const PlannedPart& part, ComputeStream& stream) {
    const uint32_t row_bytes = call_.geometry().query_row_bytes();
    const RowView q = call_.q.Rows(part.row_begin, part.row_count).Bytes();
    for (uint32_t copy = 0; copy < split.copy_count; ++copy) {
      CKV_RETURN_IF_ERROR(stream.backend().Rotate(context.rotations()[split.copies[copy]], q,
                                                  row_bytes, rows_, stream));
      rows_.data += size_t{part.row_count} * row_bytes;
    }
    return absl::OkStatus();
  }

  // Writes the selected rows of a node's chunks, which are stored one after another. If the node
  // also has dense chunks, only one chunk has selected rows. Returns how far they move: add this to
  // the index of a chunk in the plan to get its index in the frame.
  uint32_t WriteIndices(std::span<const AttendedChunk> attended,
                        std::span<const int32_t> selected) {
    const auto chosen = [](const AttendedChunk& chunk) { return chunk.index_begin != kDense; };
    const auto first = std::find_if(attended.begin(), attended.end(), chosen);
    if (first == attended.end()) return 0;
    const AttendedChunk& last = *std::find_if(attended.rbegin(), attended.rend(), chosen);
    const uint32_t begin = first->index_begin;
    const uint32_t count = last.index_begin + last.k - begin;
    std::memcpy(indices_ + index_count_, selected.data() + begin, count * sizeof(int32_t));
    index_count_ += count;
    return index_count_ - count - begin;  // modulo 2^32
  }

  // Writes a node of chunks with candidates, one piece for each run.
  void WriteRuns(const ContextState& context, std::span<const AttendedChunk> attended,
                 uint32_t partial) {
    for (size_t begin = 0, end = 0; begin < attended.size(); begin = end) {
      const AttendedChunk& first = attended[begin];
      while (end < attended.size() && attended[end].run == first.run) ++end;
      Append(PieceEntry{.handle = first.handle,
                        .ordinal = context.chunks()[first.context_index].ordinal,
                        .partial = partial,
                        .copy = first.copy,
                        .index_begin = kChosen,
                        .more = static_cast<uint32_t>(end - begin - 1)});
    }
  }

  template <typename Entry>
  void Append(const Entry& entry) {
    std::memcpy(entries_, &entry, sizeof(entry));
    entries_ += sizeof(entry);
  }

 private:
  const RouteCall& call_;
  std::byte* entries_;
  RowPlace rows_;
  int32_t* const indices_;
  uint32_t index_count_ = 0;
};

WirePrecision WirePrecisionOf(Precision precision) {
  switch (precision) {
    case Precision::kFast:
      return WirePrecision::kFast;
    case Precision::kWire:
      return WirePrecision::kWire;
    default:
      return WirePrecision::kExact;
  }
}

}  // namespace

absl::StatusOr<RequestHeader> WriteFrame(const RouteCall& call, const AttendPlan& plan,
                                         const PlannedFrame& frame, std::span<std::byte> slot,
                                         MemoryKind slot_memory, ComputeStream& stream) {
  const uint32_t d_qk = call.geometry().d_qk;
  const uint32_t part_count = frame.part_end - frame.part_begin;
  const AttendLayout layout =
      LayOutAttend(part_count, frame.piece_count, frame.stored_row_count, frame.index_count, d_qk);
  RequestHeader header;
  header.kind = WireKind::kAttend;
  header.flags = static_cast<uint8_t>((call.wire == PartialDtype::kF32 ? kFlagPartialF32 : 0) |
                                      (call.allow_approximate ? kFlagApproximate : 0));
  header.row_count = frame.row_count;
  header.layer = static_cast<uint16_t>(call.layer);
  header.segment_count = static_cast<uint16_t>(part_count);
  header.piece_count = frame.piece_count;
  header.index_count = frame.index_count;
  header.body_bytes = static_cast<uint32_t>(layout.total_bytes - sizeof(header));
  SetTrace(call.trace, header);
  header.precision = WirePrecisionOf(PrecisionOf(call.precision, call.wire));
  PartWriter writer(call, slot.data() + layout.pieces, {slot.data() + layout.rows, slot_memory},
                    reinterpret_cast<int32_t*>(slot.data() + layout.indices));
  std::byte* segments = slot.data() + layout.segments;
  for (const PlannedPart& part : plan.PartsOf(frame)) {
    const PlannedSplit& split = plan.splits()[part.split];
    const PlannedUnit& unit = plan.units()[split.unit];
    const ContextState& context = *call.segments[unit.segment].context;
    SegmentEntry segment = {.row_count = part.row_count,
                            .piece_count = split.piece_count,
                            .partial_count = split.node_count,
                            .copy_count = static_cast<uint16_t>(split.copy_count)};
    if (unit.chosen) {
      const PlannedNode& first = plan.nodes()[split.first_node];
      const ChosenCandidates& chosen =
          CandidatesAt(call, unit, plan.attended()[first.attended_begin]);
      segment.token = chosen.token;
      segment.chosen_count = chosen.count;
      segment.candidates = chosen.number;
    }
    std::memcpy(segments, &segment, sizeof(segment));
    segments += sizeof(segment);
    CKV_RETURN_IF_ERROR(writer.WriteRows(context, split, part, stream));
    for (uint32_t left = split.node_count, n = split.first_node; left > 0;
         --left, n = plan.nodes()[n].next) {
      const PlannedNode& node = plan.nodes()[n];
      const std::span<const AttendedChunk> attended =
          plan.attended().subspan(node.attended_begin, node.attended_end - node.attended_begin);
      if (unit.chosen) {
        writer.WriteRuns(context, attended, node.place);
        continue;
      }
      const uint32_t moved = writer.WriteIndices(attended, plan.selected_rows());
      for (const AttendedChunk& chunk : attended) {
        PieceEntry entry = {.handle = chunk.handle,
                            .ordinal = context.chunks()[chunk.context_index].ordinal,
                            .partial = node.place,
                            .copy = chunk.copy};
        if (chunk.index_begin != kDense) {
          entry.index_begin = chunk.index_begin + moved;
          entry.k = chunk.k;
          entry.group_rows = part.row_count;
        }
        writer.Append(entry);
      }
    }
  }
  return header;
}

}  // namespace ckv
