#include "client/bindings/c/last_error.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "client/bindings/c/handles.h"
#include "client/holders/retry.h"

namespace ckv::c {
namespace {

struct LastError {
  Owner owner;
  std::string text;
  uint64_t retry_after_ns = 0;
};

LastError& OfThread() {
  thread_local LastError error;
  return error;
}

const LastError* Of(const ckv_requester* requester) {
  const LastError& error = OfThread();
  return requester == nullptr || error.owner == requester->owner ? &error : nullptr;
}

}  // namespace

ckv_status SetLastError(Owner owner, ckv_status code, const char* text) noexcept {
  LastError& error = OfThread();
  error.owner = owner;
  error.retry_after_ns = 0;
  try {
    error.text = text;
  } catch (...) {
    error.text.clear();  // the code has to do
  }
  return code;
}

ckv_status SetLastError(Owner owner, const absl::Status& status) noexcept {
  const auto code = static_cast<ckv_status>(status.code());
  try {
    SetLastError(owner, code, std::string(status.message()).c_str());
    const auto hint = RetryAfterOf(status);
    if (hint)
      OfThread().retry_after_ns = static_cast<uint64_t>(std::max<int64_t>(0, hint->count()));
  } catch (...) {
    SetLastError(owner, code, "");
  }
  return code;
}

}  // namespace ckv::c

extern "C" const char* ckv_last_error(const ckv_requester* requester) {
  const auto* error = ckv::c::Of(requester);
  return error == nullptr ? "" : error->text.c_str();
}

extern "C" uint64_t ckv_last_retry_after_ns(const ckv_requester* requester) {
  const auto* error = ckv::c::Of(requester);
  return error == nullptr ? 0 : error->retry_after_ns;
}

extern "C" const char* ckv_status_name(ckv_status status) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  const bool known = status >= 0 && static_cast<size_t>(status) < std::size(kNames);
  return known ? kNames[status] : kNames[CKV_UNKNOWN];
}

extern "C" void ckv_api_version(uint32_t* major, uint32_t* minor) {
  if (major != nullptr) *major = CKV_API_MAJOR;
  if (minor != nullptr) *minor = CKV_API_MINOR;
}
