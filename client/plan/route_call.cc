// Checks a call before anything is sent. CheckRouteCall, in order:
//   contexts   each segment has one, and all are of one geometry
//   queries    their layer, count, width and memory, and the memory of the answer
//   segments   they follow one another, and their selections, choices and own rows are valid

#include "client/plan/route_call.h"

#include <string_view>

#include "absl/strings/str_format.h"
#include "attention/paged/row_blocks.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

absl::Status CheckSelection(const RouteSegment& segment) {
  const Selection& selection = segment.selection;
  const RowLimits& limits = segment.row_limits;
  if (selection.present() && selection.group_rows == 0)
    return absl::InvalidArgumentError("attend: a selection of groups of 0 rows");
  if (limits.present() && limits.group_rows == 0)
    return absl::InvalidArgumentError("attend: row limits of groups of 0 rows");
  if (limits.present() && selection.present())
    return absl::InvalidArgumentError(
        "attend: both row limits and a selection; set one of the two");
  return absl::OkStatus();
}

absl::Status Unreached(std::string_view what, MemoryKind memory, const Backend& backend) {
  return absl::InvalidArgumentError(
      absl::StrFormat("attend: %s in %s memory, which kernels of %s do not reach", what,
                      MemoryKindName(memory), backend.kernel_target()));
}

// Blocks beyond the cache would be read as well.
absl::Status CheckBlocks(const OwnRows& own, size_t ordinal) {
  const RowBlocks& blocks = own.rows.blocks;
  // Blocks of 0 rows are refused before the table is read.
  const uint32_t table_count =
      blocks.block_rows == 0 ? 0 : (own.rows.count - 1) / blocks.block_rows + 1;
  absl::Status status = CheckRowBlocks(blocks, table_count, own.block_count, own.rows.stride_bytes);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrFormat("attend: own rows in segment %d: %s", ordinal, status.message()));
}

absl::Status CheckOwn(const RouteSegment& segment, size_t ordinal, const Geometry& geometry,
                      const Backend& backend) {
  if (segment.own.size() > kOwnRowsCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("attend: %d own rows in segment %d, limit %d",
                                                      segment.own.size(), ordinal,
                                                      kOwnRowsCountMax));
  }
  for (const OwnRows& own : segment.own) {
    if (own.selection.present() && own.selection.group_rows == 0)
      return absl::InvalidArgumentError("attend: a selection of own rows in groups of 0 rows");
    if (own.rows.count == 0) continue;
    if (own.rows.data == nullptr || own.rows.stride_bytes < geometry.row_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("attend: own rows of %d bytes in segment %d, the model has %d",
                          own.rows.stride_bytes, ordinal, geometry.row_bytes()));
    }
    if (!backend.reach().rows.Has(own.rows.memory))
      return Unreached("own rows", own.rows.memory, backend);
    if (!own.rows.paged()) continue;
    if (!backend.reach().paged_rows) {
      return absl::UnimplementedError(absl::StrFormat(
          "attend: own rows in blocks of a paged cache, which kernels of %s do not read there",
          backend.kernel_target()));
    }
    CKV_RETURN_IF_ERROR(CheckBlocks(own, ordinal));
  }
  return absl::OkStatus();
}

absl::Status CheckContext(const RouteSegment& segment, size_t ordinal, const Geometry& geometry) {
  if (segment.context == nullptr)
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: segment %d has no context", ordinal));
  const Geometry& other = segment.context->geometry();
  if (&other == &geometry || other == geometry) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("attend: contexts of segments 0 and %d differ: %s", ordinal,
                      DescribeDifference(geometry, other)));
}

absl::Status CheckQueries(const RouteCall& call, const Backend& backend) {
  const Geometry& geometry = call.geometry();
  if (call.layer >= geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: layer %d of %d", call.layer, geometry.layers));
  }
  if (call.q.count == 0 || call.q.count > kAttendRowCountMax || call.q.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: %d query rows, 1 to %d can be", call.q.count, kAttendRowCountMax));
  }
  if (call.q.stride < geometry.d_qk) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "attend: query rows of %d values, the model has %d", call.q.stride, geometry.d_qk));
  }
  // They are rotated for holders, and attended here as they are.
  const BackendReach& reach = backend.reach();
  if (!reach.rotated_from.Has(call.q.memory) || !reach.queries.Has(call.q.memory))
    return Unreached("query rows", call.q.memory, backend);
  // It is merged, or attended in its place.
  if (!reach.merged.Has(call.out_memory) || !reach.partials.Has(call.out_memory))
    return Unreached("the answer's place", call.out_memory, backend);
  if (call.wire != PartialDtype::kBf16 && call.wire != PartialDtype::kF32)
    return absl::InvalidArgumentError("attend: no such dtype of partials");
  if (static_cast<uint8_t>(call.precision) > kPrecisionMax)
    return absl::InvalidArgumentError("attend: no such precision");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckChoice(const RouteSegment& segment) {
  if (segment.choice == nullptr) return absl::OkStatus();
  if (segment.selection.present() || segment.row_limits.present()) {
    return absl::InvalidArgumentError(
        "attend: a choice and a selection or row limits; set one of them");
  }
  if (segment.choice->context() != segment.context)
    return absl::InvalidArgumentError("attend: the choice is not of the segment's context");
  const uint32_t group_rows = segment.choice_group_rows;
  const uint64_t tokens =
      group_rows == 0 ? 0 : (uint64_t{segment.row_count} + group_rows - 1) / group_rows;
  if (tokens != 0 && segment.choice_token + tokens <= segment.choice->token_count())
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "attend: %d rows in groups of %d from token %d of a choice, which has %d tokens",
      segment.row_count, group_rows, segment.choice_token, segment.choice->token_count()));
}

absl::Status CheckRouteCall(const RouteCall& call, const Backend& backend) {
  if (call.segments.empty()) return absl::InvalidArgumentError("attend: no segments");
  for (size_t i = 0; i < call.segments.size(); ++i) {
    const RouteSegment& first = call.segments.front();
    if (i == 0 && first.context == nullptr)
      return absl::InvalidArgumentError("attend: segment 0 has no context");
    CKV_RETURN_IF_ERROR(CheckContext(call.segments[i], i, first.context->geometry()));
  }
  CKV_RETURN_IF_ERROR(CheckQueries(call, backend));
  uint64_t next_row = 0;
  for (size_t i = 0; i < call.segments.size(); ++i) {
    const RouteSegment& segment = call.segments[i];
    if (segment.row_count == 0 || segment.row_begin != next_row) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "attend: segment %d has %d rows from %d, it must begin at row %d and have one at least",
          i, segment.row_count, segment.row_begin, next_row));
    }
    next_row += segment.row_count;
    CKV_RETURN_IF_ERROR(CheckSelection(segment));
    CKV_RETURN_IF_ERROR(CheckChoice(segment));
    CKV_RETURN_IF_ERROR(CheckOwn(segment, i, call.geometry(), backend));
  }
  if (next_row == call.q.count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "attend: the segments have %d rows together, q has %d", next_row, call.q.count));
}

}  // namespace ckv
