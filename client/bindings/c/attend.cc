// Contexts, streams of engines, and calls that return with the answer.

#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_format.h"
#include "client/bindings/c/attend_arguments.h"
#include "client/bindings/c/ckv_attend.h"
#include "client/bindings/c/ckv_device.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/struct_size.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

static_assert(std::has_unique_object_representations_v<ckv_context_spec>);

absl::StatusOr<Context> OpenContext(Requester& requester, const ckv_context_spec* from) {
  ckv_context_spec taken;
  CKV_RETURN_IF_ERROR(TakeStruct("ckv_context_spec", from, taken));
  if (taken.part_count == 0 || taken.part_count > kContextPartCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("ckv_context_spec: %d parts, 1 to %d can be",
                                                      taken.part_count, kContextPartCountMax));
  }
  absl::InlinedVector<ChunkUses, 2> uses;
  absl::InlinedVector<ContextPart, 2> parts;
  uses.reserve(taken.part_count);  // spans point into it
  CKV_RETURN_IF_ERROR(
      ForEachStruct("ckv_part", taken.parts, taken.part_count, [&](const ckv_part& part) {
        ContextPart& to = parts.emplace_back();
        absl::Status status = TakePart(part, to.corpus, uses.emplace_back());
        to.chunks = uses.back();
        return status;
      }));
  ContextSpec spec;
  spec.parts = parts;
  if (taken.expect_steps != 0) spec.expect.steps = taken.expect_steps;
  if (taken.expect_agents != 0) spec.expect.agents = taken.expect_agents;
  switch (taken.policy) {
    case CKV_POLICY_AUTO:
      spec.policy = ContextPolicy::kAuto;
      break;
    case CKV_POLICY_ROUTE:
      spec.policy = ContextPolicy::kRoute;
      break;
    case CKV_POLICY_CACHE:
      spec.policy = ContextPolicy::kCache;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("ckv_context_spec: %d is no policy", taken.policy));
  }
  return requester.Open(spec, AfterField(taken.timeout_ns));
}

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_context_open(ckv_requester* requester, const ckv_context_spec* spec,
                                       ckv_context** context) {
  if (context != nullptr) *context = nullptr;
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (context == nullptr) return ckv::c::Missing("context");
    CKV_ASSIGN_OR_RETURN(ckv::Context opened, ckv::c::OpenContext(*requester->requester, spec));
    *context = new ckv_context{requester->owner, std::move(opened)};
    return absl::OkStatus();
  });
}

extern "C" void ckv_context_close(ckv_context* context) { delete context; }

extern "C" uint64_t ckv_context_token_count(const ckv_context* context) {
  return context == nullptr ? 0 : context->context.token_count();
}

extern "C" ckv_status ckv_stream_open(ckv_requester* requester, void* native, ckv_stream** stream) {
  if (stream != nullptr) *stream = nullptr;
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (stream == nullptr) return ckv::c::Missing("stream");
    if (requester->backend == ckv::Backend::Cpu()) {
      return absl::UnimplementedError(
          "streams: this requester computes on the processor: open it with backend \"cuda\"");
    }
    CKV_ASSIGN_OR_RETURN(auto made, requester->backend->StreamOver(native));
    *stream = new ckv_stream{std::move(made)};
    return absl::OkStatus();
  });
}

extern "C" void ckv_stream_free(ckv_stream* stream) { delete stream; }

extern "C" const char* ckv_backend_reason(const ckv_requester* requester) {
  return requester == nullptr ? "" : requester->backend_reason.c_str();
}

extern "C" ckv_status ckv_attend(ckv_requester* requester, const ckv_attend_call* call,
                                 ckv_attend_report* report) {
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    ckv::c::AttendArguments arguments;
    CKV_RETURN_IF_ERROR(arguments.Take(call, report, *requester->backend));
    ckv::AttendReport made;
    ckv::AttendReport* const to = report == nullptr ? nullptr : &made;
    if (arguments.has_part()) {
      CKV_RETURN_IF_ERROR(requester->requester->Attend(arguments.part_call(), arguments.out(), to));
    } else {
      CKV_RETURN_IF_ERROR(
          requester->requester->Attend(arguments.layer_call(), arguments.out(), to));
    }
    return ckv::c::GiveReport(made, report);
  });
}
