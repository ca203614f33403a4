// The listening socket of shm and tcp: lets in who says a whole hello in time, drops the rest.

#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "transport/handshake.h"
#include "transport/socket.h"

namespace ckv {

// Half-open connections at once. One more pushes out the oldest: a good peer's hello follows its
// connect within a round trip, so who is oldest under a flood is not it.
inline constexpr size_t kPendingHandshakeCountMax = 64;

// Belongs to one thread but for event_fd.
class Acceptor {
 public:
  struct Knock {
    UniqueFd fd;
    InvitationKey key;
  };

  // `listener` is a listening non-blocking socket; `name` is for the log.
  static absl::StatusOr<Acceptor> Create(UniqueFd listener, std::string name, const Clock* clock);

  // Readable when Next may have something to give or to drop.
  int event_fd() const noexcept { return epoll_.get(); }

  // The next connection with a whole hello, its token not yet judged. Never blocks.
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
  // Wakes the owner when a half-open connection is due to be dropped. A hint in real time; what is
  // dropped is decided by the clock.
  UniqueFd timer_;
  std::string name_;
  const Clock* clock_;
  std::deque<Pending> pending_;  // oldest first
};

}  // namespace ckv
