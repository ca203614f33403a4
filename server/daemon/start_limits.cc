#include "server/daemon/start_limits.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "proto/host/control_groups.h"

namespace ckv {
namespace {

// The main thread, gRPC's and those of this process that each daemon has; then those of each role.
// A daemon of all roles had 27 on two processors, 3 of which gRPC's event engine had.
constexpr uint32_t kThreadsOfDaemon = 14;
constexpr uint32_t kThreadsOfRole = 6;
// GRPC's event engine keeps a thread for each processor, up to this.
constexpr long kEngineThreadsMax = 32;
// A daemon of all roles has some 30 open before the first connection. Some are kept for its own use
// (server/listen/listener.h).
constexpr uint64_t kDescriptorsMin = 48;

void* AwaitEnd(void* ended) {
  static_cast<absl::Notification*>(ended)->WaitForNotification();
  return nullptr;
}

// Returns how many of `count` threads can run at once.
uint32_t StartedOf(uint32_t count) {
  absl::Notification ended;
  std::vector<pthread_t> threads;
  for (pthread_t thread;
       threads.size() < count && pthread_create(&thread, nullptr, AwaitEnd, &ended) == 0;) {
    threads.push_back(thread);
  }
  ended.Notify();
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  return static_cast<uint32_t>(threads.size());
}

void SayAndEnd(const std::string& line) {
  const std::string text = "ckvd: " + line + "\n";
  (void)!write(STDERR_FILENO, text.data(), text.size());
  _exit(1);
}

[[noreturn]] void EndUnhandled() noexcept {
  if (const std::exception_ptr unhandled = std::current_exception()) {
    try {
      std::rethrow_exception(unhandled);
    } catch (const std::bad_alloc&) {
      SayAndEnd("out of memory: a limit of the process (ulimit -v, ulimit -d) or of the machine");
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again)
        SayAndEnd("cannot start a thread: " + ThreadLimits());
      if (error.code() == std::errc::too_many_files_open)
        SayAndEnd("no descriptor is left: ulimit -n, LimitNOFILE");
    } catch (...) {
    }
  }
  std::abort();
}

}  // namespace

uint32_t ThreadsAtStart(const Config& config) {
  const long processors = std::clamp(sysconf(_SC_NPROCESSORS_CONF), 2L, kEngineThreadsMax);
  uint32_t count = kThreadsOfDaemon + static_cast<uint32_t>(processors);
  count += kThreadsOfRole * static_cast<uint32_t>(config.role.size());
  if (config.HasRole("holder")) count += config.compute_threads;
  return count;
}

std::string ThreadLimits() {
  std::vector<std::string> limits;
  const GroupLimits groups = ReadGroupLimits("", "self");
  if (groups.process_count != kNoGroupLimit) {
    limits.push_back(absl::StrFormat("the control group allows %d threads (%s)",
                                     groups.process_count, groups.process_file));
  }
  rlimit own = {};
  if (getrlimit(RLIMIT_NPROC, &own) == 0 && own.rlim_cur != RLIM_INFINITY) {
    limits.push_back(
        absl::StrFormat("the user may have %d processes and threads (ulimit -u)", own.rlim_cur));
  }
  if (getrlimit(RLIMIT_AS, &own) == 0 && own.rlim_cur != RLIM_INFINITY)
    limits.push_back(absl::StrFormat("the process may have %d MiB of address space (ulimit -v)",
                                     own.rlim_cur >> 20));
  if (limits.empty()) return "the machine's limit is kernel.threads-max";
  return absl::StrJoin(limits, "; ");
}

absl::Status CheckStartLimits(const Config& config) {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kDescriptorsMin) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("needs at least %d descriptors, but may have %d (ulimit -n, LimitNOFILE)",
                        kDescriptorsMin, files.rlim_cur));
  }
  const uint32_t needed = ThreadsAtStart(config);
  if (const uint32_t started = StartedOf(needed); started < needed) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "needs %d threads at its start, but could start %d: %s", needed, started, ThreadLimits()));
  }
  return absl::OkStatus();
}

void EndShortagesWithALine() { std::set_terminate(EndUnhandled); }

}  // namespace ckv
