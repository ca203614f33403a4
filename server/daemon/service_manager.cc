#include "server/daemon/service_manager.h"

#include <systemd/sd-daemon.h>

#include <utility>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

int64_t Microseconds(Duration duration) {
  return std::chrono::ceil<std::chrono::microseconds>(duration).count();
}

// A line of a message. A newline would begin another assignment.
std::string StatusLine(std::string_view status) {
  std::string line = absl::StrFormat("STATUS=%s", status);
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  return line;
}

void Send(const std::string& message) { sd_notify(/*unset_environment=*/0, message.c_str()); }

}  // namespace

ServiceManager::ServiceManager() {
  uint64_t period_us = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &period_us) > 0) {
    watchdog_period_ = std::chrono::microseconds(period_us);
  }
}

void ServiceManager::Loading(std::string_view status, Duration more) const {
  Send(absl::StrFormat("%s\nEXTEND_TIMEOUT_USEC=%d", StatusLine(status), Microseconds(more)));
}

void ServiceManager::Ready(std::string_view status) const {
  Send(absl::StrFormat("READY=1\n%s", StatusLine(status)));
}

void ServiceManager::Status(std::string_view status) const { Send(StatusLine(status)); }

void ServiceManager::Reloading(Instant now) const {
  Send(absl::StrFormat("RELOADING=1\nMONOTONIC_USEC=%d\nSTATUS=reads its configuration again",
                       Microseconds(Duration(now.ns))));
}

void ServiceManager::Stopping(std::string_view status, Duration more) const {
  Send(absl::StrFormat("STOPPING=1\n%s\nEXTEND_TIMEOUT_USEC=%d", StatusLine(status),
                       Microseconds(more)));
}

void ServiceManager::Ping() const { Send("WATCHDOG=1"); }

Watchdog::Watchdog(std::vector<LivePart> parts, Duration watchdog_period, Instant now)
    : period_(watchdog_period) {
  for (LivePart& part : parts) {
    Watched watched;
    watched.count = part.count();
    watched.part = std::move(part);
    parts_.push_back(std::move(watched));
  }
  Begin(now);
}

void Watchdog::Begin(Instant now) {
  last_ping_ = now;
  reported_ = false;
  for (Watched& watched : parts_) {
    watched.moved = false;
    if (watched.part.poke) watched.part.poke();
  }
}

bool Watchdog::Due(Instant now) {
  bool all = true;
  for (Watched& watched : parts_) {
    const uint64_t count = watched.part.count();
    watched.moved |= std::exchange(watched.count, count) != count;
    all &= watched.moved;
  }
  if (!all || now < last_ping_ + period_ / 4) return false;
  Begin(now);
  return true;
}

std::string Watchdog::StalledPart(Instant now) {
  if (reported_ || now < last_ping_ + period_ / 2) return "";
  for (const Watched& watched : parts_) {
    if (watched.moved) continue;
    reported_ = true;
    return watched.part.name;
  }
  return "";
}

}  // namespace ckv
