// Runs a daemon until a signal. RunUntilDrained, in order: blocks the signals; Daemon::Start, while
// LoadingReporter requests more time from the service manager on its own thread; RunUntilStopped;
// drain. RunUntilStopped repeats, on the main thread: wait for a signal, at most one tick; on
// SIGHUP, Reload; Daemon::Tick; report state and watchdog beats (Reporter). SIGTERM and SIGINT end
// it. After that, a second signal or a drain that hangs ends the process at once (ArmLastExit).

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/log.h"
#include "server/daemon/daemon.h"
#include "server/daemon/live_parts.h"
#include "server/daemon/reload.h"
#include "server/daemon/service_manager.h"
#include "server/telemetry/log_output.h"

namespace ckv {
namespace {

// Time for what follows a drain's deadline: joining threads, returning leases.
constexpr Duration kDrainGrace = std::chrono::seconds(5);

// How often a start asks the service manager for time, and for how much. So a start may make no
// progress for the difference: a cold disk answers within seconds, or is lost.
constexpr Duration kExtendPeriod = std::chrono::seconds(1);
constexpr Duration kExtendBy = std::chrono::seconds(30);

// Ends a daemon on a second signal, or if its drain hangs. Async-signal-safe.
void ExitAtOnce(int /*signal*/) { _exit(1); }

sigset_t HandledSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

// Waits for a handled signal, at most Daemon::kTickPeriod. Returns it, or 0.
int AwaitSignal(int fd) {
  const auto period = std::chrono::duration_cast<std::chrono::milliseconds>(Daemon::kTickPeriod);
  pollfd waiting = {fd, POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(period.count())) <= 0) return 0;
  signalfd_siginfo info{};
  if (read(fd, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

// From here on SIGTERM and SIGINT end the process at once, and so does a drain that hangs: a call
// that waits for a silent holder is not cut short by the server's shutdown. SIGHUP stays blocked.
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

// Requests more time while Daemon::Start reads a store or a directory's folder, as long as the
// reading makes progress.
class LoadingReporter {
 public:
  LoadingReporter(const ServiceManager& manager, const CountedFiles& files,
                  const ReplayProgress& replay)
      : manager_(manager), files_(files), replay_(replay), thread_([this] { Run(); }) {}
  ~LoadingReporter() {
    {
      absl::MutexLock lock(&mu_);
      done_ = true;
    }
    thread_.join();
  }
  LoadingReporter(const LoadingReporter&) = delete;
  LoadingReporter& operator=(const LoadingReporter&) = delete;

 private:
  void Run() {
    Clock& clock = *Clock::Real();
    std::optional<std::string> reported;
    absl::MutexLock lock(&mu_);
    while (!done_) {
      const std::string status = Status();
      if (reported != status) manager_.Loading(status, kExtendBy);
      reported = status;
      clock.Await(mu_, absl::Condition(&done_), clock.Now() + kExtendPeriod);
    }
  }

  // Returns another text whenever the start has made progress.
  std::string Status() const {
    std::string status = "loads: ";
    if (replay_.bytes_due.load(std::memory_order_relaxed) != 0) {
      absl::StrAppendFormat(&status, "%d %% of the directory's folder, %d changes; ",
                            replay_.percent(),
                            replay_.record_count.load(std::memory_order_relaxed));
    }
    absl::StrAppendFormat(&status, "%d calls to the store's files", files_.call_count());
    return status;
  }

  const ServiceManager& manager_;
  const CountedFiles& files_;
  const ReplayProgress& replay_;
  absl::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last, because it uses the others
};

// Reports the state of a running daemon to the service manager.
class Reporter {
 public:
  Reporter(const ServiceManager& manager, const Daemon& daemon)
      : manager_(manager), daemon_(daemon) {
    if (const auto period = manager.watchdog_period()) {
      watchdog_.emplace(daemon.live_parts(), *period, Clock::Real()->Now());
    }
  }

  // Call it after each Tick.
  void Tick() {
    const Instant now = Clock::Real()->Now();
    if (now >= next_report_) TellState(now);
    if (!watchdog_) return;
    if (watchdog_->Due(now)) manager_.Ping();
    const std::string still = watchdog_->StalledPart(now);
    if (!still.empty())
      Log().error("{} makes no progress: the watchdog gets no more reports", still);
  }

  void ReportReady() {
    reported_ = daemon_.status();
    manager_.Ready(reported_);
    ready_ = true;
  }

 private:
  void TellState(Instant now) {
    // Ready is reported at once, the rest once a second.
    if (!ready_ && daemon_.ready()) return ReportReady();
    next_report_ = now + (ready_ ? kExtendPeriod : Daemon::kTickPeriod);
    const std::string status = daemon_.status();
    // Waits for a directory that is unreachable. A start that fails would read the store again.
    if (!ready_ && now >= next_extend_) {
      manager_.Loading(status, kExtendBy);
      next_extend_ = now + kExtendPeriod;
    } else if (ready_ && status != reported_) {
      manager_.Status(status);
    }
    reported_ = status;
  }

  const ServiceManager& manager_;
  const Daemon& daemon_;
  std::optional<Watchdog> watchdog_;
  Instant next_report_{}, next_extend_{};
  bool ready_ = false;
  std::string reported_;
};

// The log of this process, as the configuration wants it.
class DaemonLog {
 public:
  explicit DaemonLog(const Config& config)
      : name_(NameOf(config)), output_(LogToStderr(StyleOf(config))) {
    SetLevel(config);
  }
  ~DaemonLog() { Logger().flush(); }
  DaemonLog(const DaemonLog&) = delete;
  DaemonLog& operator=(const DaemonLog&) = delete;

  // Lines have the name, which follows from the port, from here on.
  void SetName(const std::string& name, const Config& config) {
    name_ = name;
    output_->SetStyle(StyleOf(config));
  }
  // Takes the live options.
  void Take(const Config& config) {
    SetLevel(config);
    output_->SetStyle(StyleOf(config));
  }
  void Tick() { output_->Tick(); }

 private:
  static std::string NameOf(Config config) {
    FillConfig(config);
    return config.name;
  }
  static void SetLevel(const Config& config) {
    Logger().set_level(spdlog::level::from_str(config.log_level));
  }
  LogStyle StyleOf(const Config& config) const {
    const auto format = ParseLogFormat(config.log_format);
    CKV_CHECK(format.ok());  // the option allows no other value
    LogStyle style;
    style.format = *format;
    style.name = name_;
    style.roles = absl::StrJoin(config.role, "+");
    return style;
  }

  std::string name_;
  const std::shared_ptr<LogOutput> output_;
};

// Takes what can change from the configuration as it is now. If it has errors, nothing changes.
void Reload(const ConfigReader& reread, DaemonLog& log, Config& config) {
  const auto wanted = reread();
  if (!wanted.ok()) {
    Log().error("SIGHUP: nothing changes: {}", std::string(wanted.status().message()));
    return;
  }
  for (const std::string& warning : wanted->warnings) Log().warn("{}", warning);
  const ReloadReport report = TakeLiveOptions(wanted->config, config);
  // Logged before Take applies a new log level.
  for (const std::string& line : report.changed) Log().info("SIGHUP: {}", line);
  log.Take(config);
  for (const std::string& line : report.needs_restart) {
    Log().warn("SIGHUP: {}: needs a restart", line);
  }
  Log().info("SIGHUP: read the configuration again, {} changed, {} need a restart",
             report.changed.size(), report.needs_restart.size());
}

// Returns the signal that ends the daemon, or 0 if an error has ended it.
int RunUntilStopped(Daemon& daemon, Reporter& reporter, const ServiceManager& manager,
                    const ConfigReader& reread, DaemonLog& log, Config& config, int signal_fd) {
  for (;;) {
    const int received = AwaitSignal(signal_fd);
    if (received == SIGHUP) {
      manager.Reloading(Clock::Real()->Now());
      Reload(reread, log, config);
      if (daemon.ready()) reporter.ReportReady();
    } else if (received != 0) {
      return received;
    }
    if (const absl::Status status = daemon.Tick(); !status.ok()) {
      Log().error("{}", std::string(status.message()));
      return 0;
    }
    reporter.Tick();
    log.Tick();
  }
}

// Returns the process' exit status.
int RunUntilDrained(const ConfigReader& reread, DaemonLog& log, Config& config) {
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a lane's peer may disconnect at any time
  const int fd = signalfd(-1, &signals, SFD_CLOEXEC);
  if (fd < 0) {
    Log().error("signalfd: {}", std::strerror(errno));
    return 1;
  }
  const ServiceManager manager;
  CountedFiles files;
  ReplayProgress replay;
  std::optional<LoadingReporter> loading(std::in_place, manager, files, replay);
  auto daemon = Daemon::Start(config, &files, &replay);
  loading.reset();
  if (!daemon.ok()) {
    Log().error("{}", std::string(daemon.status().message()));
    manager.Status(std::string(daemon.status().message()));
    return 1;
  }
  log.SetName((*daemon)->name(), config);
  std::optional<Reporter> reporter(std::in_place, manager, **daemon);
  const int received = RunUntilStopped(**daemon, *reporter, manager, reread, log, config, fd);
  if (received == 0) return 1;
  Log().info("{}: draining, at most {} ms", strsignal(received),
             std::chrono::duration_cast<std::chrono::milliseconds>(config.drain_timeout).count());
  manager.Stopping("drains", config.drain_timeout + kDrainGrace);
  reporter.reset();
  ArmLastExit(signals, config.drain_timeout);
  (*daemon)->Drain(Clock::Real()->Now() + config.drain_timeout);
  daemon->reset();
  Log().info("drained");
  close(fd);
  return 0;
}

}  // namespace

int RunDaemon(const ParsedConfig& start, const ConfigReader& reread) {
  Config config = start.config;
  DaemonLog log(config);
  for (const std::string& warning : start.warnings) Log().warn("{}", warning);
  for (const std::string& note : start.notes) Log().info("{}", note);
  return RunUntilDrained(reread, log, config);
}

}  // namespace ckv
