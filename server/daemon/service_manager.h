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
// does nothing. Messages are best effort: one that is not delivered is lost, and is not repeated
// here. Thread-safe.
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  ServiceManager();

  // Not ready yet; `status` describes what the process does. The start may take `more` from now.
  void Loading(std::string_view status, Duration more) const;
  void Ready(std::string_view status) const;
  void Status(std::string_view status) const;
  // Reads its configuration again, as of `now`. Call Ready when that is done.
  void Reloading(Instant now) const;
  // Stops, which may take `more` from now.
  void Stopping(std::string_view status, Duration more) const;
  // Pings the watchdog. Without a ping for watchdog_period() the manager kills and restarts the
  // daemon.
  void Ping() const;

  // Unset if the manager does not watch this process.
  std::optional<Duration> watchdog_period() const { return watchdog_period_; }

 private:
  std::optional<Duration> watchdog_period_;
};

// A part of a daemon that makes progress unless it hangs: a thread that polls, or a server that
// answers.
struct LivePart {
  std::string name;                 // for the log
  std::function<void()> poke;       // makes an idle part progress soon; may be empty
  std::function<uint64_t()> count;  // increases with each step; never waits for the part
};

// Decides when to ping the watchdog: when all parts have progressed since the last ping, at most
// four times per watchdog period. So a stalled part stops the pings, and the manager ends the
// daemon one period after the last ping. Used by one thread.
class Watchdog {
 public:
  Watchdog(std::vector<LivePart> parts, Duration watchdog_period, Instant now);

  // Returns true if a ping is due. Call it about every Daemon::kTickPeriod.
  bool Due(Instant now);
  // Returns the name of a stalled part: one without progress half a watchdog period after the last
  // ping. Returns "" if there is none, or if one was already reported since that ping.
  std::string StalledPart(Instant now);

 private:
  struct Watched {
    LivePart part;
    uint64_t count = 0;
    bool moved = false;
  };
  void Begin(Instant now);

  const Duration period_;
  std::vector<Watched> parts_;
  Instant last_ping_;
  bool reported_ = false;
};

}  // namespace ckv
