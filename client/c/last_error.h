// The last error of each thread, and the fence that no C++ exception passes.

#pragma once

#include <cstdint>
#include <exception>
#include <new>

#include "absl/status/status.h"
#include "client/c/ckv.h"

namespace ckv::c {

// Keeps the error as the calling thread's last, and returns its code. `owner` is the requester of
// the call, or null.
ckv_status SetLastError(const void* owner, const absl::Status& status) noexcept;
ckv_status SetLastError(const void* owner, ckv_status code, const char* text) noexcept;

// Runs a function that returns an absl::Status as a function of the ABI.
template <typename Function>
ckv_status Guard(const void* owner, Function&& function) noexcept {
  try {
    const absl::Status status = function();
    if (status.ok()) [[likely]]
      return CKV_OK;
    return SetLastError(owner, status);
  } catch (const std::bad_alloc&) {
    return SetLastError(owner, CKV_RESOURCE_EXHAUSTED, "no memory");
  } catch (const std::exception& error) {
    return SetLastError(owner, CKV_INTERNAL, error.what());
  } catch (...) {
    return SetLastError(owner, CKV_INTERNAL, "an exception of an unknown type");
  }
}

}  // namespace ckv::c
