// Settles what computes in a ckvd: the kernel target and the backends.
//
// The kernel target is settled while the process has one thread. So the use of AMX is asked for
// before any thread could have an alternate signal stack:
//
//   kernel_target names one       that one
//   a choice was kept             the choice in the folder store.path, else that of
//                                 requester.profile, if it was made on this machine by this build
//   otherwise                     by measurement; a holder with store.path keeps the choice there
//
// So a restart changes no bit, however close the rates of two targets are.

#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "client/decide/profile_file.h"
#include "server/daemon/config.h"
#include "server/holder/holder.h"
#include "store/disk/file_system.h"

namespace ckv {

// The name of the file in store.path (client/decide/kernel_record.h).
inline constexpr std::string_view kKernelFile = "KERNEL";

struct KernelStart {
  std::string told;      // the target in use, and why
  std::string warning;   // why a choice that was kept is not used; empty if it is, or there is none
  bool to_keep = false;  // store.path has no choice that can be used: call KeepKernelTarget
};

// Settles the target, and logs what it tells, a line each. It writes nothing. `profile` may be
// null. In a process that has chosen before, auto keeps to that choice.
//   NotFound            this machine lacks the target that kernel_target names; the message has
//                       those that it has.
absl::StatusOr<KernelStart> SettleKernelTarget(const Config& config, const Profile* profile,
                                               FileSystem& files = *FileSystem::Real());

// Writes the choice of this process to store.path, whole or not at all. Call it while the folder is
// open: its lock keeps other processes away. An error is logged, and returned for tests: the next
// start measures again.
//   Errors as of file_system.h.
absl::Status KeepKernelTarget(const Config& config, FileSystem& files = *FileSystem::Real());

// The backends of a ckvd's roles. Both live as long as the process.
struct DaemonBackends {
  Backend* holder = Backend::Cpu();
  // Its queries and answers are messages, in memory that a device may not reach. Then it is the
  // processor, and the member says that target.
  Backend* requester = Backend::Cpu();

  Backend& Of(MemberRole role) const { return role == MemberRole::kHolder ? *holder : *requester; }
};

// Settles them by config.backend, and logs which it is and why. With auto, a device that no holder
// can serve with (HolderMemory) is left for the processor. Call it after SettleKernelTarget.
//   NotFound, FailedPrecondition, ResourceExhausted   as StartBackend of cuda
//                                                     (attention/device/backend_library.h).
absl::StatusOr<DaemonBackends> SettleBackends(const Config& config, const std::string& folder);

// Starts a holder over backends.holder, which takes the place of options.backend. With auto, the
// processor takes the place of both `backends` if the device fails, or the system locks no memory
// for it. The log then says why and what to do.
//   Errors of Holder::Start.
absl::StatusOr<std::unique_ptr<Holder>> StartHolderOver(DaemonBackends& backends,
                                                        const Config& config,
                                                        HolderOptions options);

}  // namespace ckv
