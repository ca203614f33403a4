// Who may be at the other end of a shm lane's socket.

#pragma once

#include <sys/types.h>

#include "absl/status/status.h"

namespace ckv {

// Memory is shared with one's own user only: whoever maps it can write all of it.
//   PermissionDenied    says both users.
absl::Status CheckPeerUser(uid_t peer, uid_t self);

// CheckPeerUser for the process that connected to, or listens at, the other end of `socket_fd`.
absl::Status CheckPeerOf(int socket_fd);

}  // namespace ckv
