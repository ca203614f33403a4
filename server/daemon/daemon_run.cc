#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>

#include "server/daemon.h"

namespace ckv {
namespace {

// What comes after a drain's deadline: joining threads, giving leases back.
constexpr Duration kDrainGrace = std::chrono::seconds(5);

// The end of a daemon that is asked twice. Async-signal-safe.
void ExitAtOnce(int /*signal*/) { _exit(1); }

sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
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

// From here on a signal ends the process at once, and so does a drain that hangs: a call that waits
// for a silent holder is not cut short by the server's shutdown.
void ArmLastExit(const sigset_t& signals, Duration drain_timeout) {
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
  auto logger = spdlog::stderr_logger_mt("ckvd");
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
  logger->set_level(spdlog::level::from_str(config.log_level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);

  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a lane's peer may go at any time
  const int fd = signalfd(-1, &signals, SFD_CLOEXEC);
  if (fd < 0) {
    spdlog::error("signalfd: {}", std::strerror(errno));
    return 1;
  }
  auto daemon = Daemon::Start(config);
  if (!daemon.ok()) {
    spdlog::error("{}", std::string(daemon.status().message()));
    return 1;
  }
  int received = 0;
  while (received == 0) {
    received = AwaitSignal(fd);
    if (const absl::Status status = (*daemon)->Tick(); !status.ok()) {
      spdlog::error("{}", std::string(status.message()));
      return 1;
    }
  }
  spdlog::info("{}: draining, at most {} ms", strsignal(received),
               std::chrono::duration_cast<std::chrono::milliseconds>(config.drain_timeout).count());
  ArmLastExit(signals, config.drain_timeout);
  (*daemon)->Drain(Clock::Real()->Now() + config.drain_timeout);
  daemon->reset();
  spdlog::info("drained");
  close(fd);
  return 0;
}

}  // namespace ckv
