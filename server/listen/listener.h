// Listening TCP sockets that stay able to accept, whatever others do to the process' descriptors.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/base/host_port.h"
#include "transport/socket.h"

namespace ckv {

// A port for health answers when the ports for calls refuse.
enum class PortUse { kCalls, kHealth };

// Returns how many descriptors a process keeps for files, lanes and its own connections if `limit`
// is all it may have. A port for calls leaves an eighth, at least 16. A port for health leaves a
// 64th, at least 4. A connection that would take one of them is refused.
uint64_t DescriptorsKept(uint64_t limit, PortUse use);

// Belongs to one thread, after Bind.
//
// A connection that finds no descriptor is accepted and closed at once, by a descriptor that is
// kept for it. So its peer sees that it is refused, and none waits in the backlog to be found
// later. The kernel gives the lowest free number, so a connection's number says how many are in
// use.
class PortListener {
 public:
  // Listens on every address of the host that this machine has. Port 0 takes a free one, the same
  // for all. If `both_families`, a wildcard of one family stands for those of both, as in gRPC.
  // The sockets are non-blocking, and what they accept sends without delay.
  //   Unavailable         none can be bound, or one is in use; says why.
  static absl::StatusOr<PortListener> Bind(const HostPort& address, bool both_families,
                                           PortUse use);

  // The sockets: readable when a connection waits.
  const std::vector<UniqueFd>& sockets() const { return sockets_; }
  uint16_t port() const { return port_; }

  enum class Outcome {
    kAccepted,
    kRefused,  // a connection came and was closed, because descriptors run out
    kShort,    // one waits, and no descriptor is left to refuse it with: call again later
    kNone,     // no connection waits
  };
  struct Accepted {
    Outcome outcome = Outcome::kNone;
    int fd = -1;  // the caller's; non-blocking and close-on-exec
  };
  // Gives the port up. Connections in the backlog are refused.
  void Close() { sockets_.clear(); }

  // Takes the next connection of one of the sockets. Never blocks.
  Accepted Accept(const UniqueFd& socket);
  // After kShort the sockets stay readable, so who polls them pauses for this time.
  static constexpr Duration kShortPause = std::chrono::milliseconds(50);

 private:
  explicit PortListener(PortUse use) : use_(use) {}

  PortUse use_;
  std::vector<UniqueFd> sockets_;
  uint16_t port_ = 0;
  UniqueFd reserve_;  // given up for a moment to accept and close
};

}  // namespace ckv
