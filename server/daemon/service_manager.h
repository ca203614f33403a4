// Notifications to the service manager that started a daemon: systemd, by sd_notify(3).

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/clock.h"

namespace ckv {

// The notifications of one process. If no manager listens (NOTIFY_SOCKET is not set), every call
// does nothing. A message that is not taken is lost, and the next one tells the same. Thread-safe.
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  ServiceManager();

  // Not ready yet: `status` says what it does. The start may take `more` from now on.
  void Loading(std::string_view status, Duration more) const;
  void Ready(std::string_view status) const;
  void Status(std::string_view status) const;
  // Reads its configuration anew, as of `now`. Call Ready when it is done.
  void Reloading(Instant now) const;
  // Ends, which may take `more` from now on.
  void Stopping(std::string_view status, Duration more) const;
  // The daemon lives. Without a Beat for watchdog_period() the manager kills and restarts it.
  void Beat() const;

  // Unset if the manager does not watch this process.
  std::optional<Duration> watchdog_period() const { return watchdog_period_; }

 private:
  std::optional<Duration> watchdog_period_;
};

// A part of a daemon that moves while it lives: a thread that polls, or a server that answers.
struct LivePart {
  std::string name;                 // for the log
  std::function<void()> poke;       // makes an idle part move soon
  std::function<uint64_t()> count;  // grows with each of its moves; never waits for the part
};

// Says when to beat: each time all parts have moved since the last beat, at most four times a
// watchdog period. So a part that stands still ends the beats, and the manager ends the daemon one
// period after the last. One thread uses it.
class Heart {
 public:
  Heart(std::vector<LivePart> parts, Duration watchdog_period, Instant now);

  // Returns true if a beat is due. Call it every Daemon::kTickPeriod or so.
  bool Due(Instant now);
  // Returns the name of a part that has not moved for half a watchdog period, once for each stop of
  // the heart, else "".
  std::string Standstill(Instant now);

 private:
  struct Watched {
    LivePart part;
    uint64_t count = 0;
    bool moved = false;
  };
  void Begin(Instant now);

  const Duration period_;
  std::vector<Watched> parts_;
  Instant last_beat_;
  bool told_ = false;
};

}  // namespace ckv
