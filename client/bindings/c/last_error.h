// The last error of each thread, and the fence that no C++ exception passes.

#pragma once

#include <cstdint>
#include <exception>
#include <new>

#include "absl/status/status.h"
#include "client/bindings/c/ckv.h"

namespace ckv::c {

// Names a requester: addresses are used again. 0 is none.
struct Owner {
  uint64_t id = 0;
  friend bool operator==(Owner, Owner) = default;
};

// Keeps the error as the calling thread's last, and returns its code. `owner` is the requester of
// the call, if it has one.
ckv_status SetLastError(Owner owner, const absl::Status& status) noexcept;
ckv_status SetLastError(Owner owner, ckv_status code, const char* text) noexcept;

// Runs a function that returns an absl::Status as a function of the ABI.
template <typename Function>
ckv_status Guard(Owner owner, Function&& function) noexcept {
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
