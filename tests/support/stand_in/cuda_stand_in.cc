// Libraries by the name of a GPU's, for hosts without one. STAND_IN says what is in it.

#include "absl/status/status.h"
#include "attention/device/backend_library.h"
#include "tests/support/deferred_backend.h"

namespace {

using ckv::BackendModule;

absl::StatusOr<std::unique_ptr<ckv::Backend>> OpenDeferred() {
  using ckv::test::DeferredBackend;
  return std::make_unique<DeferredBackend>(DeferredBackend::ReachPinned(), "CUDA_SM90");
}

absl::StatusOr<std::unique_ptr<ckv::Backend>> FindNoDevice() {
  return absl::FailedPreconditionError("no GPU: the driver finds 0 devices");
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const BackendModule* ckv_backend_module() {
  static const BackendModule module = {
      .build = STAND_IN == 3 ? "ckv 0.0.1, commit abc" : ckv::BackendBuild().c_str(),
      .open = STAND_IN == 2 ? FindNoDevice : OpenDeferred,
  };
  return STAND_IN == 4 ? nullptr : &module;
}
