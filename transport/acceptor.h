// The listening socket of shm and tcp: admits a connection that sends a whole hello in time, and
// drops the rest.

#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "transport/handshake.h"
#include "transport/socket.h"

namespace ckv {

// The largest number of half-open connections. One more pushes out the oldest. A good peer's hello
// follows its connect within a round trip, so under a flood the oldest connection is not a good
// peer's.
inline constexpr size_t kPendingHandshakeCountMax = 64;

// Belongs to one thread, except event_fd.
class Acceptor {
 public:
  struct Knock {
    UniqueFd fd;
    InvitationKey key;
  };

  // Takes over `listener`, a listening non-blocking socket. `name` appears in the log.
  static absl::StatusOr<Acceptor> Create(UniqueFd listener, std::string name, const Clock* clock);

  // Becomes readable when Next may have a connection to return or to drop.
  int event_fd() const noexcept { return epoll_.get(); }

  // Returns the next connection with a whole hello, or nullopt. The caller has to check its token.
  // Never blocks.
  std::optional<Knock> Next();

 private:
  struct Pending {
    UniqueFd fd;
    Instant deadline;
    size_t got_bytes = 0;
    std::array<std::byte, sizeof(HelloFrame)> hello;
  };
  enum class Progress { kWaiting, kWhole, kDropped };

  Acceptor(UniqueFd listener, UniqueFd epoll, UniqueFd timer, std::string name, const Clock* clock)
      : listener_(std::move(listener)),
        epoll_(std::move(epoll)),
        timer_(std::move(timer)),
        name_(std::move(name)),
        clock_(clock) {}

  void AcceptNew();
  Progress Read(Pending& pending);
  void Drop(const char* why);
  void SetTimer();

  UniqueFd listener_;
  UniqueFd epoll_;
  // Wakes the owner when a half-open connection is due to be dropped. It runs in real time and is
  // only a hint: the clock decides which connections are dropped.
  UniqueFd timer_;
  std::string name_;
  const Clock* clock_;
  std::deque<Pending> pending_;  // oldest first
};

}  // namespace ckv
