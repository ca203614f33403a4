// Listening TCP sockets that can always accept, even if the process runs out of file descriptors.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/base/host_port.h"
#include "transport/socket.h"

namespace ckv {

// A port for health still accepts when the ports for calls refuse connections.
enum class PortUse { kCalls, kHealth };

// Returns how many of a process' `limit` descriptors are reserved for files, lanes and its own
// connections. A port for calls reserves an eighth, at least 16. A port for health reserves a 64th,
// at least 4. A connection that would use a reserved descriptor is refused.
uint64_t DescriptorsKept(uint64_t limit, PortUse use);

// Used by one thread after Bind.
//
// If no descriptor is free, a connection is accepted with a reserve descriptor and closed
// immediately. The peer then sees the refusal, and no connection stays in the backlog. The kernel
// assigns the lowest free descriptor number, so a connection's number shows how many are in use.
class PortListener {
 public:
  // Listens on every address of the host that this machine has. Port 0 picks a free port, the same
  // for all addresses. If `both_families` is true, a wildcard address of one family means both
  // families, as in gRPC. The sockets are non-blocking. Accepted connections have TCP_NODELAY.
  //   Unavailable         the host cannot be resolved, no address can be bound, or one is in use;
  //                       the message has the cause.
  static absl::StatusOr<PortListener> Bind(const HostPort& address, bool both_families,
                                           PortUse use);

  // The listening sockets. A socket is readable when a connection waits.
  const std::vector<UniqueFd>& sockets() const { return sockets_; }
  uint16_t port() const { return port_; }

  enum class Outcome {
    kAccepted,
    kRefused,  // a connection was accepted and closed, because descriptors run out
    kShort,    // one waits, but no descriptor is left to refuse it: call again later
    kNone,     // no connection waits
  };
  struct Accepted {
    Outcome outcome = Outcome::kNone;
    int fd = -1;  // owned by the caller; non-blocking and close-on-exec
  };
  // Closes the sockets. Connections in the backlog are refused.
  void Close() { sockets_.clear(); }

  // Accepts the next connection of one of the sockets. Never blocks.
  Accepted Accept(const UniqueFd& socket);
  // How long to pause before polling again after kShort, because the sockets stay readable.
  static constexpr Duration kShortPause = std::chrono::milliseconds(50);

 private:
  explicit PortListener(PortUse use) : use_(use) {}

  PortUse use_;
  std::vector<UniqueFd> sockets_;
  uint16_t port_ = 0;
  UniqueFd reserve_;  // released for a moment to accept a connection and close it
};

}  // namespace ckv
