// The gathering half of the router: blocks whose replies are all there are merged, in order.

#include <algorithm>

#include "attention/merge.h"
#include "client/call/route.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status Router::MergeReady(const AttendCall& call, const PartialView& out) {
  const auto block_count = static_cast<uint32_t>(plan_.blocks().size());
  if (merge_late_) {
    // `out` is the caller's own: not a byte of it is written before every reply is there.
    for (uint32_t block = 0; block < block_count; ++block) {
      if (!BlockComplete(block)) return absl::OkStatus();
    }
    // I1 before the first byte, too.
    for (uint32_t block = 0; block < block_count; ++block) CKV_RETURN_IF_ERROR(CoverBlock(block));
    CKV_RETURN_IF_ERROR(coverage_.CheckComplete());
    for (uint32_t block = 0; block < block_count; ++block) MergeBlock(call, block, out);
    next_merge_ = block_count;
    return absl::OkStatus();
  }
  for (; next_merge_ < block_count && BlockComplete(next_merge_); ++next_merge_) {
    CKV_RETURN_IF_ERROR(CoverBlock(next_merge_));
    MergeBlock(call, next_merge_, out);
  }
  return absl::OkStatus();
}

bool Router::BlockComplete(uint32_t block) const {
  for (uint32_t batch = 0; batch < plan_.batches().size(); ++batch) {
    const FrameState state = frame(block, batch).state;
    if (state == FrameState::kWaiting || state == FrameState::kPosted) return false;
  }
  return true;
}

absl::Status Router::CoverBlock(uint32_t block) {
  const PlannedBlock& rows = plan_.blocks()[block];
  for (uint32_t batch = 0; batch < plan_.batches().size(); ++batch) {
    const Frame& answered = frame(block, batch);
    for (uint32_t i = answered.sent_begin; i < answered.empty_end; ++i)
      CKV_RETURN_IF_ERROR(coverage_.Cover(lists_[i], rows.row_begin, rows.row_count));
  }
  return absl::OkStatus();
}

void Router::MergeBlock(const AttendCall& call, uint32_t block, const PartialView& out) {
  const PlannedBlock& rows = plan_.blocks()[block];
  const uint32_t d_v = call.corpus->geometry.d_v;
  CollectParts(call, block);
  const PartialView place = {static_cast<float*>(out.o) + size_t{rows.row_begin} * d_v,
                             out.m + rows.row_begin, out.l + rows.row_begin, PartialDtype::kF32};
  MergePartials(parts_, rows.row_count, d_v, place);
  ReleaseBlock(block);
}

// The block's partials in the order of the merge: of chunks in the order of the call, or of groups
// by rank. Neither depends on the order in which replies came, or on which replica they came from
// (I2).
void Router::CollectParts(const AttendCall& call, uint32_t block) {
  const uint32_t row_count = plan_.blocks()[block].row_count;
  const PartialLayout layout =
      LayOutPartial(row_count, call.corpus->geometry.d_v, call.wire == PartialDtype::kF32);
  const auto view = [&](const Frame& from, uint32_t ordinal) {
    const std::byte* base = from.reply.data() + sizeof(ReplyHeader) + ordinal * layout.total_bytes;
    return ConstPartialView(base + layout.o, reinterpret_cast<const float*>(base + layout.m),
                            reinterpret_cast<const float*>(base + layout.l), call.wire);
  };
  parts_.clear();
  if (call.per_chunk) parts_of_piece_.assign(plan_.pieces().size(), ConstPartialView());
  for (uint32_t batch = 0; batch < plan_.batches().size(); ++batch) {
    const Frame& from = frame(block, batch);
    if (from.state == FrameState::kEmpty) continue;
    if (!call.per_chunk) {
      parts_.push_back(view(from, 0));
      continue;
    }
    for (uint32_t i = from.sent_begin; i < from.sent_end; ++i)
      parts_of_piece_[lists_[i]] = view(from, i - from.sent_begin);
  }
  if (!call.per_chunk) return;
  for (const ConstPartialView& part : parts_of_piece_) {
    if (part.o != nullptr) parts_.push_back(part);
  }
}

void Router::ReleaseBlock(uint32_t block) {
  for (uint32_t line = 0; line < exchange_.line_count(); ++line) {
    for (const uint32_t batch : flows_[line].batches) {
      const Frame& merged = frame(block, batch);
      if (merged.state == FrameState::kArrived) exchange_.Release(line, merged.slot);
    }
  }
}

}  // namespace ckv
