#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>

#include "proto/base/log.h"
#include "server/daemon/daemon.h"

namespace ckv {
namespace {

// Time for what comes after a drain's deadline: joining threads, giving leases back.
constexpr Duration kDrainGrace = std::chrono::seconds(5);

// The end of a daemon that is asked twice. Async-signal-safe.
void ExitAtOnce(int /*signal*/) { _exit(1); }

sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // A terminal that goes away ends a daemon as SIGTERM does; one under nohup goes on.
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  return signals;
}

// Waits for an ending signal, at most Daemon::kTickPeriod. Returns it, or 0.
int AwaitSignal(int fd) {
  const auto period = std::chrono::duration_cast<std::chrono::milliseconds>(Daemon::kTickPeriod);
  pollfd waiting = {fd, POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(period.count())) <= 0) return 0;
  signalfd_siginfo info{};
  if (read(fd, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

// From here on SIGTERM and SIGINT end the process at once, and so does a drain that hangs: a call
// that waits for a silent holder is not cut short by the server's shutdown. SIGHUP stays blocked: a
// shell that ends sends it more than once.
void ArmLastExit(sigset_t signals, Duration drain_timeout) {
  sigdelset(&signals, SIGHUP);
  struct sigaction action {};
  action.sa_handler = ExitAtOnce;
  sigaction(SIGALRM, &action, nullptr);
  alarm(static_cast<unsigned>(
      std::chrono::ceil<std::chrono::seconds>(drain_timeout + kDrainGrace).count()));
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace

int RunDaemon(const Config& config) {
  Log().set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
  Log().set_level(spdlog::level::from_str(config.log_level));

  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a lane's peer may go at any time
  const int fd = signalfd(-1, &signals, SFD_CLOEXEC);
  if (fd < 0) {
    Log().error("signalfd: {}", std::strerror(errno));
    return 1;
  }
  auto daemon = Daemon::Start(config);
  if (!daemon.ok()) {
    Log().error("{}", std::string(daemon.status().message()));
    return 1;
  }
  int received = 0;
  while (received == 0) {
    received = AwaitSignal(fd);
    if (const absl::Status status = (*daemon)->Tick(); !status.ok()) {
      Log().error("{}", std::string(status.message()));
      return 1;
    }
  }
  Log().info("{}: draining, at most {} ms", strsignal(received),
             std::chrono::duration_cast<std::chrono::milliseconds>(config.drain_timeout).count());
  ArmLastExit(signals, config.drain_timeout);
  (*daemon)->Drain(Clock::Real()->Now() + config.drain_timeout);
  daemon->reset();
  Log().info("drained");
  close(fd);
  return 0;
}

}  // namespace ckv
