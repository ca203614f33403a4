// Checks who is at the other end of a shm lane's socket.

#pragma once

#include <sys/types.h>

#include "absl/status/status.h"

namespace ckv {

// Allows only a peer of the same user, because a process that maps the memory can write all of it.
//   PermissionDenied    names both users.
absl::Status CheckPeerUser(uid_t peer, uid_t self);

// Calls CheckPeerUser for the process that connected to `socket_fd`, or that listens at its other
// end.
absl::Status CheckPeerOf(int socket_fd);

}  // namespace ckv
