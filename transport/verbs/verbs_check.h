// Checks, one by one, what a machine must have before verbs can work.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/verbs/verbs_fabric.h"

struct ibv_context;

namespace ckv {

// Refuses options that no device can have.
//   InvalidArgument     names the option.
absl::Status CheckVerbsOptions(const VerbsOptions& options);

// Checks how much memory this process may pin; CAP_IPC_LOCK lifts the limit.
//   FailedPrecondition  RLIMIT_MEMLOCK is below the limit of region_bytes.
absl::Status CheckLockedMemory(const VerbsOptions& options);
// `limit_bytes` is the value of RLIMIT_MEMLOCK; RLIM_INFINITY means that there is no limit.
absl::Status CheckLockedMemory(const VerbsOptions& options, uint64_t limit_bytes);

// Opens the device of that name; if `name` is empty, the only device. The caller closes it.
//   Unavailable         the device does not exist; the message says which do, or which module is
//                       missing.
//   InvalidArgument     there are several devices and `name` is empty.
//   PermissionDenied    this process may not open the device's file.
absl::StatusOr<ibv_context*> OpenVerbsDevice(const std::string& name);

}  // namespace ckv
