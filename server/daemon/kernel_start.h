// Selects the kernel target and the backends of a ckvd.
//
// The kernel target is selected while the process has one thread, because AMX must be requested
// before any thread may have an alternate signal stack:
//
//   kernel_target names one       that target
//   a choice was stored           the choice in the folder store.path, else that of
//                                 requester.profile, if it was made on this machine by this build
//   otherwise                     by measurement; a holder with store.path stores the choice there
//
// So a restart does not change the bits of any result, however close the rates of two targets are.

#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "client/cost/profile_file.h"
#include "server/daemon/config.h"
#include "server/holder/holder.h"
#include "store/disk/file_system.h"

namespace ckv {

// The name of the file in store.path (client/cost/kernel_record.h).
inline constexpr std::string_view kKernelFile = "KERNEL";

struct KernelStart {
  std::string reason;    // the target in use, and why
  std::string warning;   // why a stored choice is not used; empty if it is, or there is none
  bool to_keep = false;  // store.path has no usable choice: call KeepKernelTarget
};

// Selects the target, and logs `reason` and `warning`, one line each. Writes nothing. `profile` may
// be null. If the process has selected a target before, auto keeps that one.
//   NotFound            this machine lacks the target that kernel_target names; the message lists
//                       the available ones.
absl::StatusOr<KernelStart> SettleKernelTarget(const Config& config, const Profile* profile,
                                               FileSystem& files = *FileSystem::Real());

// Writes the choice of this process to store.path, whole or not at all. Call it while the folder is
// open, because its lock excludes other processes. Logs an error and returns it for tests: the next
// start measures again.
//   Errors as in file_system.h.
absl::Status KeepKernelTarget(const Config& config, FileSystem& files = *FileSystem::Real());

// The backends of a ckvd's roles. Both exist until the process ends.
struct DaemonBackends {
  Backend* holder = Backend::Cpu();
  // A requester's queries and results are messages, in memory that a device may not be able to
  // access. This is then the CPU backend, and the member registers with that backend's kernel
  // target.
  Backend* requester = Backend::Cpu();

  Backend& Of(MemberRole role) const { return role == MemberRole::kHolder ? *holder : *requester; }
};

// Selects the backends by config.backend, and logs the choice and its reason. With auto, uses the
// processor instead of a device that no holder can use (HolderMemory). Call it after
// SettleKernelTarget.
//   NotFound, FailedPrecondition, ResourceExhausted   as StartBackend of cuda
//                                                     (attention/device/backend_library.h).
absl::StatusOr<DaemonBackends> SettleBackends(const Config& config, const std::string& folder);

// Starts a holder with backends.holder, which replaces options.backend. With auto, the processor
// replaces both `backends` if the device fails, or if the system locks no memory for it. The log
// then has the reason and a remedy.
//   Errors of Holder::Start.
absl::StatusOr<std::unique_ptr<Holder>> StartHolderOver(DaemonBackends& backends,
                                                        const Config& config,
                                                        HolderOptions options);

}  // namespace ckv
