// Selections by index scores.

#include <utility>

#include "absl/strings/str_format.h"
#include "client/bindings/c/ckv_select.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/struct_size.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

static_assert(std::has_unique_object_representations_v<ckv_select_call>);
static_assert(std::has_unique_object_representations_v<ckv_select_report>);

absl::Status TakeSelect(const ckv_select_call* from, const ckv_select_report* report,
                        SelectRowsCall& to) {
  if (report != nullptr) CKV_RETURN_IF_ERROR(CheckStruct("ckv_select_report", report));
  ckv_select_call call;
  CKV_RETURN_IF_ERROR(TakeStruct("ckv_select_call", from, call));
  if (call.reserved != 0)
    return absl::InvalidArgumentError("ckv_select_call: a reserved field is not 0");
  if (call.context == nullptr) return Missing("ckv_select_call: context");
  if (call.q == nullptr) return Missing("ckv_select_call: q");
  if (call.weights == nullptr) return Missing("ckv_select_call: weights");
  if (call.own_scores == nullptr && call.own_count != 0)
    return Missing("ckv_select_call: own_scores");
  if (call.q_dtype != CKV_INDEX_BF16 && call.q_dtype != CKV_INDEX_FP8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ckv_select_call: %d is no type of queries", call.q_dtype));
  }
  to.context = &call.context->context;
  to.layer = call.layer;
  to.queries.dtype =
      call.q_dtype == CKV_INDEX_BF16 ? IndexQueryDtype::kBf16 : IndexQueryDtype::kFp8;
  to.queries.q = static_cast<const std::byte*>(call.q);
  to.queries.weights = call.weights;
  to.queries.tokens = call.token_count;
  to.k = call.k;
  to.own_scores = {call.own_scores, size_t{call.token_count} * call.own_count};
  to.deadline = AfterField(call.timeout_ns);
  return TakeTrace(call.traceparent, to.trace);
}

absl::Status GiveSelectReport(const SelectRowsReport& report, ckv_select_report* to) {
  if (to == nullptr) return absl::OkStatus();
  ckv_select_report made = {};
  made.bytes_sent = report.bytes_sent;
  made.bytes_received = report.bytes_received;
  made.compute_ns_max = report.compute_ns_max;
  made.elapsed_ns = static_cast<uint64_t>(report.elapsed.count());
  made.holder_count = report.holder_count;
  return GiveStruct("ckv_select_report", made, to);
}

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_select_rows(ckv_requester* requester, const ckv_select_call* call,
                                      int32_t* rows, ckv_select_report* report) {
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (rows == nullptr) return ckv::c::Missing("rows");
    ckv::SelectRowsCall taken;
    CKV_RETURN_IF_ERROR(ckv::c::TakeSelect(call, report, taken));
    ckv::SelectRowsReport made;
    CKV_RETURN_IF_ERROR(requester->requester->SelectRows(
        taken, {rows, size_t{taken.queries.tokens} * taken.k}, &made));
    return ckv::c::GiveSelectReport(made, report);
  });
}

extern "C" ckv_status ckv_choose_rows(ckv_requester* requester, const ckv_select_call* call,
                                      ckv_select_report* report, ckv_choice** choice) {
  if (choice != nullptr) *choice = nullptr;
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (choice == nullptr) return ckv::c::Missing("choice");
    ckv::SelectRowsCall taken;
    CKV_RETURN_IF_ERROR(ckv::c::TakeSelect(call, report, taken));
    ckv::SelectRowsReport made;
    CKV_ASSIGN_OR_RETURN(ckv::RowChoice chosen, requester->requester->ChooseRows(taken, &made));
    CKV_RETURN_IF_ERROR(ckv::c::GiveSelectReport(made, report));
    *choice = new ckv_choice{requester->owner, std::move(chosen)};
    return absl::OkStatus();
  });
}

extern "C" uint32_t ckv_choice_own_rows(const ckv_choice* choice, uint32_t token,
                                        const uint32_t** rows) {
  if (rows != nullptr) *rows = nullptr;
  if (choice == nullptr || token >= choice->choice.token_count()) return 0;
  const auto own = choice->choice.own_rows(token);
  if (rows != nullptr) *rows = own.data();
  return static_cast<uint32_t>(own.size());
}

extern "C" void ckv_choice_free(ckv_choice* choice) { delete choice; }
