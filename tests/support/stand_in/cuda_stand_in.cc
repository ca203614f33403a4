// Libraries by the name of a GPU's, for hosts without one. STAND_IN says what is in it.

#include "tests/support/stand_in/cuda_stand_in.h"

#include <map>
#include <mutex>

#include "absl/status/status.h"
#include "attention/device/backend_library.h"
#include "tests/support/deferred_backend.h"

namespace {

using ckv::BackendModule;
using ckv::test::DeferredBackend;

DeferredBackend* opened = nullptr;  // until the process ends

absl::StatusOr<std::unique_ptr<ckv::Backend>> OpenDeferred() {
  const ckv::MemoryKinds own = {ckv::MemoryKind::kDevice};
  const ckv::BackendReach none = {own, own, own, own, own, own, own, own, own};
  const ckv::BackendReach reach = STAND_IN == 5   ? DeferredBackend::ReachAll()
                                  : STAND_IN == 7 ? none
                                                  : DeferredBackend::ReachPinned();
  auto made = std::make_unique<DeferredBackend>(reach, "CUDA_SM90");
  made->FailPins(STAND_IN == 6);
  opened = made.get();
  return made;
}

absl::StatusOr<std::unique_ptr<ckv::Backend>> FindNoDevice() {
  return absl::FailedPreconditionError("no GPU: the driver finds 0 devices");
}

DeferredBackend& Device() {
  CKV_CHECK(opened != nullptr);
  return *opened;
}

// Memory that the test's functions gave, by address.
std::mutex mu;
std::map<void*, ckv::BackendMemory>& Given() {
  static auto* const given = new std::map<void*, ckv::BackendMemory>;
  return *given;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const BackendModule* ckv_backend_module() {
  static const BackendModule module = {
      .build = STAND_IN == 3 ? "ckv 0.0.1, commit abc" : ckv::BackendBuild().c_str(),
      .open = STAND_IN == 2 ? FindNoDevice : OpenDeferred,
  };
  return STAND_IN == 4 ? nullptr : &module;
}

void* stand_in_allocate(uint32_t kind, uint64_t bytes) {
  ckv::BackendMemory memory = *Device().Allocate(static_cast<ckv::MemoryKind>(kind), bytes);
  void* const at = memory.data();
  const std::lock_guard lock(mu);
  Given()[at] = std::move(memory);
  return at;
}

void stand_in_free(void* memory) {
  const std::lock_guard lock(mu);
  Given().erase(memory);
}

void stand_in_copy(void* to, const void* from, uint64_t bytes) {
  Device().Copy(static_cast<std::byte*>(to), {static_cast<const std::byte*>(from), bytes});
}

void* stand_in_stream_new() { return (*Device().NewStream(1)).release(); }

void stand_in_stream_copy(void* native, void* to, const void* from, uint64_t bytes) {
  const auto size = static_cast<uint32_t>(bytes);
  ckv::BackendMemory staged = *Device().Allocate(ckv::MemoryKind::kPinned, bytes);
  Device().Copy(staged.data(), {static_cast<const std::byte*>(from), bytes});
  const ckv::RowView rows = {staged.data(), 1, size, ckv::MemoryKind::kPinned};
  CKV_CHECK(opened
                ->Rotate(ckv::RopeRotation(ckv::RopeParams(), 0, 0), rows, size,
                         {static_cast<std::byte*>(to), ckv::MemoryKind::kDevice},
                         *static_cast<ckv::ComputeStream*>(native))
                .ok());
  // The work may be done at any time from now on.
  const std::lock_guard lock(mu);
  void* const at = staged.data();
  Given()[at] = std::move(staged);
}

int stand_in_stream_ready(void* native) {
  return static_cast<ckv::ComputeStream*>(native)->Ready() ? 1 : 0;
}

void stand_in_stream_free(void* native) { delete static_cast<ckv::ComputeStream*>(native); }

void stand_in_do_all() { Device().DoAll(); }

uint64_t stand_in_attend_count() { return Device().attend_count(); }
