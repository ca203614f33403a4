// Builds the parts of a call from an AttendRequest. Checks every size before it allocates memory of
// that size.

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "attention/bf16.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "server/rpc/attend_request.h"

namespace ckv {
namespace {

static_assert(std::endian::native == std::endian::little);

// A run as it is encoded in Selection.runs.
struct Run {
  int32_t begin = 0;
  int32_t length = 0;
};
static_assert(sizeof(Run) == 8);

uint64_t GroupCount(uint64_t rows, uint32_t group_rows) {
  return (rows + group_rows - 1) / group_rows;
}
uint32_t GroupRows(uint32_t group_rows) { return std::max(group_rows, 1u); }

Run RunAt(const std::string& runs, uint64_t i) {
  Run run;
  std::memcpy(&run, runs.data() + i * sizeof(Run), sizeof(Run));
  return run;
}

// Returns the query rows in bf16. The caller has checked that they have the right number of bytes.
const uint16_t* BitsOf(const v1::AttendRequest& request, AttendMemory& memory) {
  if (request.q_dtype() != v1::QUERY_DTYPE_F32)
    return reinterpret_cast<const uint16_t*>(request.q().data());
  memory.q.resize(request.q().size() / sizeof(float));
  Bf16FromFloats(reinterpret_cast<const float*>(request.q().data()), memory.q.data(),
                 memory.q.size());
  return memory.q.data();
}

// Returns the most rows that the runs of one group have. Allocates nothing.
absl::StatusOr<uint32_t> RunRowsMax(const v1::Selection& selection, uint64_t groups) {
  const uint64_t k = selection.k();
  // Not by a product, which may wrap.
  const uint64_t list_bytes = k * sizeof(Run), bytes = selection.runs().size();
  if (k == 0 || bytes % list_bytes != 0 || bytes / list_bytes != groups) {
    return absl::InvalidArgumentError(
        absl::StrFormat("selection: %d bytes of runs; there are %d groups of %d runs of 8 bytes",
                        bytes, groups, k));
  }
  uint64_t rows_max = 0;
  for (uint64_t group = 0; group < groups; ++group) {
    uint64_t rows = 0;
    for (uint64_t i = 0; i < k; ++i) {
      const Run run = RunAt(selection.runs(), group * k + i);
      if (run.length == 0) continue;
      if (run.begin < 0 || run.length < 0 || run.length - 1 > INT32_MAX - run.begin) {
        return absl::InvalidArgumentError(
            absl::StrFormat("selection: run %d of list %d is %d rows from %d; a run must be within "
                            "the chunks, and one of "
                            "length 0 is skipped",
                            i, group, run.length, run.begin));
      }
      rows += static_cast<uint64_t>(run.length);
    }
    rows_max = std::max(rows_max, rows);
  }
  if (groups * std::min(rows_max, kSelectionIndexCountMax + 1) <= kSelectionIndexCountMax)
    return static_cast<uint32_t>(rows_max);
  return absl::InvalidArgumentError(absl::StrFormat(
      "selection: %d groups of runs of up to %d rows; the limit is %d rows together", groups,
      rows_max, kSelectionIndexCountMax));
}

// Writes the rows of each group's runs, and -1 for the rest of its `k` indices.
void Expand(const v1::Selection& selection, uint64_t groups, uint32_t k,
            std::vector<int32_t>& indices) {
  indices.assign(groups * k, -1);
  for (uint64_t group = 0; group < groups; ++group) {
    int32_t* next = indices.data() + group * k;
    for (uint64_t i = 0; i < selection.k(); ++i) {
      const Run run = RunAt(selection.runs(), group * selection.k() + i);
      for (int32_t row = 0; row < run.length; ++row) *next++ = run.begin + row;
    }
  }
}

// `indices` always gets a capacity, so that its data() is not null. So an empty list is still a
// selection, and every result is then empty.
absl::StatusOr<Selection> SelectionOf(const v1::AttendRequest& request,
                                      std::vector<int32_t>& indices) {
  const v1::Selection& selection = request.selection();
  const uint32_t group_rows = GroupRows(selection.group_rows());
  const uint64_t groups = GroupCount(request.row_count(), group_rows);
  if (!selection.runs().empty()) {
    if (!selection.indices().empty())
      return absl::InvalidArgumentError("selection: indices and runs: send one of them");
    CKV_ASSIGN_OR_RETURN(const uint32_t k, RunRowsMax(selection, groups));
    indices.reserve(1);
    Expand(selection, groups, k, indices);
    return Selection{indices.data(), k, group_rows};
  }
  auto sent = Int32sFromBytes(selection.indices(), kSelectionIndexCountMax);
  if (!sent.ok()) return Annotate(sent.status(), "selection");
  if (sent->size() != groups * selection.k()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("selection: %d indices; %d groups of %d are %d", sent->size(), groups,
                        selection.k(), groups * selection.k()));
  }
  indices = *std::move(sent);
  indices.reserve(1);
  return Selection{indices.data(), selection.k(), group_rows};
}

absl::StatusOr<RowLimits> RowLimitsOf(const v1::AttendRequest& request,
                                      std::vector<uint32_t>& limits) {
  const std::string& sent = request.row_limits().limits();
  const uint32_t group_rows = GroupRows(request.row_limits().group_rows());
  const uint64_t groups = GroupCount(request.row_count(), group_rows);
  if (request.has_selection())
    return absl::InvalidArgumentError(
        "row_limits: together with a selection: leave the rows it must not see out of the "
        "selection");
  if (sent.size() != groups * sizeof(uint32_t)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("row_limits: %d bytes; %d groups of 4 bytes are %d", sent.size(), groups,
                        groups * sizeof(uint32_t)));
  }
  limits.resize(groups);
  limits.reserve(1);
  if (!limits.empty()) std::memcpy(limits.data(), sent.data(), sent.size());
  return RowLimits{limits.data(), group_rows};
}

}  // namespace

uint64_t AttendMemoryBytes(const v1::AttendRequest& request) {
  const v1::Selection& selection = request.selection();
  uint64_t bytes = request.q_dtype() == v1::QUERY_DTYPE_F32 ? request.q().size() / 2 : 0;
  bytes += selection.indices().size() + request.row_limits().limits().size();
  if (selection.runs().empty()) return bytes;
  const uint64_t groups = GroupCount(request.row_count(), GroupRows(selection.group_rows()));
  const auto k = RunRowsMax(selection, groups);
  return bytes + (k.ok() ? groups * *k * sizeof(int32_t) : 0);
}

absl::StatusOr<AttendParts> PartsOf(const v1::AttendRequest& request, const Geometry& geometry,
                                    AttendMemory& memory) {
  AttendParts parts;
  if (!DtypeOf(request.answer()).ok()) return absl::InvalidArgumentError("answer: unknown");
  CKV_RETURN_IF_ERROR(CheckAttendShape(request, geometry));
  CKV_ASSIGN_OR_RETURN(parts.wire, DtypeOf(request.wire()));
  CKV_ASSIGN_OR_RETURN(parts.precision, PrecisionOf(request.precision()));
  if (request.has_selection()) {
    CKV_ASSIGN_OR_RETURN(parts.selection, SelectionOf(request, memory.indices));
  }
  if (request.has_row_limits()) {
    CKV_ASSIGN_OR_RETURN(parts.row_limits, RowLimitsOf(request, memory.row_limits));
  }
  parts.q = {BitsOf(request, memory), request.row_count(), geometry.d_qk};
  return parts;
}

}  // namespace ckv
