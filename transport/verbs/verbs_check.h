// What a machine must have before verbs can work, checked one by one.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/verbs_fabric.h"

struct ibv_context;

namespace ckv {

// What no device can have.
//   InvalidArgument     names the option.
absl::Status CheckVerbsOptions(const VerbsOptions& options);

//   FailedPrecondition  RLIMIT_MEMLOCK is below the limit of region_bytes.
absl::Status CheckLockedMemory(const VerbsOptions& options);
// `limit_bytes` is RLIMIT_MEMLOCK's (RLIM_INFINITY: none).
absl::Status CheckLockedMemory(const VerbsOptions& options, uint64_t limit_bytes);

// The device of that name, or the only one if empty. The caller closes it.
//   Unavailable         there is none; says which, or which module is missing.
//   InvalidArgument     there are several and none is named.
//   PermissionDenied    its file is not ours to open.
absl::StatusOr<ibv_context*> OpenVerbsDevice(const std::string& name);

}  // namespace ckv
