// Checks the structs of an attend and translates them, on the caller's thread, before anything is
// sent. Take, in order:
//   report    its size, because a report that cannot be written must not cost an answer
//   call      its size, pointers, alignment, segment count and precision
//   segments  each with its selection, and its own rows or its part. The spans of own rows are set
//             once all are in the vector
//   device    the kinds of memory, and the stream `after`
// GiveReport writes the report after the call.

#include "client/bindings/c/attend_arguments.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "absl/strings/str_format.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/struct_size.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

// The structs have no padding. Otherwise, a later version could put a field in padding, which an
// earlier program leaves uninitialized.
static_assert(std::has_unique_object_representations_v<ckv_part>);
static_assert(std::has_unique_object_representations_v<ckv_own_rows>);
static_assert(std::has_unique_object_representations_v<ckv_segment>);
static_assert(std::has_unique_object_representations_v<ckv_attend_call>);
static_assert(std::has_unique_object_representations_v<ckv_attend_report>);
static_assert(CKV_PRECISION_FAST == kPrecisionMax &&
              CKV_PRECISION_WIRE == static_cast<int>(Precision::kWire));

// Far above what a call can have: rows of q are 65536 at most, and each segment has one.
constexpr uint32_t kSegmentCountMax = kAttendRowCountMax;

bool Aligned(const void* pointer, size_t to) {
  return reinterpret_cast<uintptr_t>(pointer) % to == 0;
}

absl::Status CheckMemory(const ckv_attend_call& call) {
  if (call.q == nullptr) return Missing("q");
  if (call.o == nullptr || call.m == nullptr || call.l == nullptr) return Missing("o, m or l");
  if (!Aligned(call.q, sizeof(uint16_t)) || !Aligned(call.o, sizeof(float)) ||
      !Aligned(call.m, sizeof(float)) || !Aligned(call.l, sizeof(float))) {
    return absl::InvalidArgumentError("attend: q, o, m or l is not aligned to its values");
  }
  return absl::OkStatus();
}

absl::Status CheckReserved(const char* name, uint32_t reserved) {
  if (reserved == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: reserved is %d", name, reserved));
}

// Takes the selection of a segment or of own rows.
template <typename Struct>
absl::Status TakeSelection(const char* name, const Struct& from, Selection& to) {
  if (from.selected == nullptr && from.selected_count != 0)
    return absl::InvalidArgumentError(absl::StrFormat("%s: selected: NULL", name));
  to = {from.selected, from.selected_count, std::max(from.selected_group_rows, 1u)};
  return absl::OkStatus();
}

}  // namespace

absl::Status TakePart(const ckv_part& part, std::shared_ptr<const Corpus>& corpus,
                      ChunkUses& uses) {
  if (part.corpus == nullptr) return Missing("ckv_part: corpus");
  CKV_RETURN_IF_ERROR(CheckReserved("ckv_part", part.reserved));
  corpus = part.corpus->corpus;
  if (part.chunks == nullptr && (part.chunk_count != 0 || part.offsets != nullptr))
    return absl::InvalidArgumentError("ckv_part: chunk_count or offsets without chunks");
  if (part.chunks != nullptr && part.chunk_count == 0)
    return absl::InvalidArgumentError("ckv_part: a list of no chunks");
  const auto chunk_count = static_cast<uint32_t>(corpus->chunks.size());
  if (part.chunks == nullptr && part.offset == 0) return absl::OkStatus();
  const uint32_t count = part.chunks == nullptr ? chunk_count : part.chunk_count;
  if (count > chunk_count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ckv_part: %d chunks, the corpus has %d", count, chunk_count));
  }
  uses.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t offset = part.offsets == nullptr ? 0 : part.offsets[i];
    // Each is checked, so that the sum does not overflow. The requester checks the sum.
    if (std::max(offset, part.offset) > kOffsetMax || std::min(offset, part.offset) < -kOffsetMax)
      return absl::InvalidArgumentError("ckv_part: an offset beyond 2^40");
    uses.push_back({part.chunks == nullptr ? i : part.chunks[i], offset + part.offset});
  }
  return absl::OkStatus();
}

absl::Status AttendArguments::TakeOwn(const ckv_own_rows& own, uint32_t row_bytes) {
  if (own.rows == nullptr && own.row_count != 0) return Missing("ckv_own_rows: rows");
  CKV_RETURN_IF_ERROR(CheckReserved("ckv_own_rows", own.reserved));
  OwnRows& to = own_.emplace_back();
  CKV_RETURN_IF_ERROR(TakeMemory("own rows", own.memory, *backend_, to.rows.memory));
  to.rows.data = static_cast<const std::byte*>(own.rows);
  to.rows.count = own.row_count;
  to.rows.stride_bytes = own.stride_bytes == 0 ? row_bytes : own.stride_bytes;
  to.visible = own.visible;
  CKV_RETURN_IF_ERROR(TakeSelection("ckv_own_rows", own, to.selection));
  if (own.blocks == nullptr) return absl::OkStatus();
  to.block_count = own.block_count;
  to.rows.blocks = {own.blocks, own.block_rows, own.block_stride_bytes};
  if (own.block_stride_bytes == 0)
    to.rows.blocks.block_stride_bytes = uint64_t{own.block_rows} * to.rows.stride_bytes;
  return absl::OkStatus();
}

absl::Status AttendArguments::TakeSegment(const ckv_segment& segment, uint32_t call_rows,
                                          bool only) {
  CKV_RETURN_IF_ERROR(CheckReserved("ckv_segment", segment.reserved));
  if ((segment.context == nullptr) == (segment.part == nullptr))
    return absl::InvalidArgumentError("ckv_segment: not one of context and part");
  Segment& to = segments_.emplace_back();
  own_counts_.push_back(segment.own_count);
  to.row_begin = segment.row_begin;
  to.row_count = only && segment.row_count == 0 ? call_rows : segment.row_count;
  CKV_RETURN_IF_ERROR(TakeSelection("ckv_segment", segment, to.selection));
  if (segment.choice != nullptr) {
    if (segment.part != nullptr)
      return absl::InvalidArgumentError("ckv_segment: a choice is of a context, not of a part");
    to.choice = {.rows = &segment.choice->choice,
                 .token_begin = segment.choice_token_begin,
                 .group_rows = std::max(segment.choice_group_rows, 1u)};
  }
  if (segment.part != nullptr) {
    if (!only || segment.own_count != 0 || to.row_begin != 0 || to.row_count != call_rows) {
      return absl::InvalidArgumentError(
          "ckv_segment: a part is attended by a call of one segment of all rows, without own rows");
    }
    ckv_part part;
    CKV_RETURN_IF_ERROR(TakeStruct("ckv_part", segment.part, part));
    return TakePart(part, corpus_, uses_);
  }
  to.context = &segment.context->context;
  if (segment.own_count > kOwnRowsCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ckv_segment: %d own rows, limit %d", segment.own_count, kOwnRowsCountMax));
  }
  const uint32_t row_bytes = to.context->geometry().row_bytes();
  return ForEachStruct("ckv_own_rows", segment.own, segment.own_count,
                       [&](const ckv_own_rows& own) { return TakeOwn(own, row_bytes); });
}

absl::Status AttendArguments::TakeDevice(const ckv_attend_call& call) {
  CKV_RETURN_IF_ERROR(TakeMemory("q", call.q_memory, *backend_, call_.q.memory));
  CKV_RETURN_IF_ERROR(TakeMemory("o, m and l", call.out_memory, *backend_, out_.memory));
  if (call.after == nullptr) return absl::OkStatus();
  ComputeStream* const after = call.after->stream.get();
  call_.q.after = out_.after = after;
  for (OwnRows& own : own_) own.rows.after = after;
  return absl::OkStatus();
}

absl::Status AttendArguments::Take(const ckv_attend_call* from, const ckv_attend_report* report,
                                   const Backend& backend) {
  backend_ = &backend;
  if (report != nullptr) {
    // Before the call, so that its answer is not lost.
    CKV_RETURN_IF_ERROR(CheckStruct("ckv_attend_report", report));
  }
  ckv_attend_call call;
  CKV_RETURN_IF_ERROR(TakeStruct("ckv_attend_call", from, call));
  CKV_RETURN_IF_ERROR(CheckReserved("ckv_attend_call", call.reserved));
  CKV_RETURN_IF_ERROR(CheckMemory(call));
  if (call.segment_count == 0 || call.segment_count > kSegmentCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ckv_attend_call: %d segments", call.segment_count));
  }
  if (call.precision > kPrecisionMax)
    return absl::InvalidArgumentError("ckv_attend_call: no such precision");
  CKV_RETURN_IF_ERROR(TakeWire(call.wire, call_.wire));
  CKV_RETURN_IF_ERROR(TakeTrace(call.traceparent, call_.trace));
  segments_.reserve(call.segment_count);
  CKV_RETURN_IF_ERROR(
      ForEachStruct("ckv_segment", call.segments, call.segment_count, [&](const ckv_segment& one) {
        return TakeSegment(one, call.row_count, call.segment_count == 1);
      }));
  // Spans, now that the vector of own rows no longer moves.
  size_t own_begin = 0;
  for (size_t i = 0; i < own_counts_.size(); ++i) {
    segments_[i].own = std::span<const OwnRows>(own_).subspan(own_begin, own_counts_[i]);
    own_begin += own_counts_[i];
  }
  const Geometry& geometry = has_part() ? corpus_->geometry : segments_.front().context->geometry();
  call_.layer = call.layer;
  call_.q.data = call.q;
  call_.q.count = call.row_count;
  call_.q.stride = call.q_stride == 0 ? geometry.d_qk : call.q_stride;
  call_.segments = segments_;
  call_.precision = static_cast<Precision>(call.precision);
  call_.allow_approximate = call.allow_approximate != 0;
  call_.deadline = AfterField(call.timeout_ns);
  out_ = {call.o, call.m, call.l, PartialDtype::kF32};
  return TakeDevice(call);
}

AttendCall AttendArguments::part_call() const {
  AttendCall call;
  call.corpus = corpus_;
  call.chunks = uses_;
  call.layer = call_.layer;
  call.q = call_.q;
  call.selection = segments_.front().selection;
  call.wire = call_.wire;
  call.precision = call_.precision;
  call.allow_approximate = call_.allow_approximate;
  call.trace = call_.trace;
  call.deadline = call_.deadline;
  return call;
}

absl::Status GiveReport(const AttendReport& report, ckv_attend_report* to) {
  if (to == nullptr) return absl::OkStatus();
  ckv_attend_report made = {};
  made.bytes_sent = report.bytes_sent;
  made.bytes_received = report.bytes_received;
  made.compute_ns_max = report.compute_ns_max;
  made.elapsed_ns = static_cast<uint64_t>(report.elapsed.count());
  made.lost_ns = static_cast<uint64_t>(report.lost.count());
  made.failed_attempt_count = report.failed_attempt_count;
  made.routed_pairs = report.routed_pairs;
  made.cached_pairs = report.cached_pairs;
  made.own_pairs = report.own_pairs;
  made.prefetched_bytes = report.prefetched_bytes;
  made.holder_count = report.holder_count;
  made.precision = static_cast<uint32_t>(report.precision);
  made.approximate = report.approximate ? 1 : 0;
  made.targets_differ = report.targets_differ ? 1 : 0;
  made.same_bits_anywhere = report.same_bits_anywhere ? 1 : 0;
  made.kernel_target = static_cast<uint32_t>(report.kernel_target);
  return GiveStruct("ckv_attend_report", made, to);
}

}  // namespace ckv::c
