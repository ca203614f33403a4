#include "server/web/metrics_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace ckv {
namespace {

// The text of a file in /proc, which is shorter than 1 MiB; empty if it cannot be read.
std::string ReadAll(const char* path) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  const UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> part = {};
  ssize_t count = 0;
  while (file.valid() && text.size() < kMostBytes &&
         (count = read(file.get(), part.data(), part.size())) > 0) {
    text.append(part.data(), static_cast<size_t>(count));
  }
  return text;
}

// The fields of /proc/self/stat from the state on, which is field 3 of proc(5).
constexpr size_t kFirstField = 3;
constexpr size_t kUserTicks = 14, kSystemTicks = 15, kThreads = 20, kStartTicks = 22,
                 kVirtualBytes = 23, kResidentPages = 24;

class ProcessStat {
 public:
  ProcessStat() {
    const std::string text = ReadAll("/proc/self/stat");
    // The name of the program is in parentheses, and may have some itself.
    const size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) return;
    for (const absl::string_view field :
         absl::StrSplit(absl::string_view(text).substr(name_end + 1), ' ', absl::SkipEmpty())) {
      fields_.emplace_back(field);
    }
  }
  std::optional<uint64_t> Field(size_t number) const {
    uint64_t value = 0;
    const size_t index = number - kFirstField;
    if (index >= fields_.size() || !absl::SimpleAtoi(fields_[index], &value)) return std::nullopt;
    return value;
  }

 private:
  std::vector<std::string> fields_;
};

// Seconds since 1970 at which the system booted.
std::optional<uint64_t> BootSeconds() {
  const std::string text = ReadAll("/proc/stat");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    uint64_t seconds = 0;
    if (line.substr(0, 6) == "btime " && absl::SimpleAtoi(line.substr(6), &seconds)) return seconds;
  }
  return std::nullopt;
}

// `limit`: the most that may be open.
std::optional<uint64_t> OpenFdCount(std::optional<uint64_t> limit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  // If none is left to look with, all are open: an alert must not clear then.
  if (folder == nullptr) return errno == EMFILE ? limit : std::nullopt;
  uint64_t count = 0;
  while (const dirent* entry = readdir(folder.get())) count += entry->d_name[0] != '.' ? 1 : 0;
  return count - 1;  // but for the folder's own
}

}  // namespace

void AddProcess(MetricsPage& page) {
  const ProcessStat stat;
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto user = stat.Field(kUserTicks), system = stat.Field(kSystemTicks);
  if (user && system) {
    page.Counter("process_cpu_seconds_total",
                 "Processor time. A rate of the number of processors is all of them.",
                 static_cast<double>(*user + *system) / ticks_per_second);
  }
  if (const auto pages = stat.Field(kResidentPages)) {
    page.Gauge("process_resident_memory_bytes",
               "Memory in use, a holder's rows included. If it grows without ckv_holder_chunks, "
               "something leaks.",
               *pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  }
  if (const auto bytes = stat.Field(kVirtualBytes))
    page.Gauge("process_virtual_memory_bytes", "Addresses in use.", *bytes);
  if (const auto threads = stat.Field(kThreads))
    page.Gauge("process_threads", "Threads.", *threads);
  rlimit files = {};
  std::optional<uint64_t> limit;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) limit = files.rlim_cur;
  if (const auto count = OpenFdCount(limit)) {
    page.Gauge("process_open_fds",
               "Open files and sockets. Near process_max_fds: raise LimitNOFILE of the unit.",
               *count);
  }
  if (limit) page.Gauge("process_max_fds", "The most that may be open.", *limit);
  const auto boot = BootSeconds(), start = stat.Field(kStartTicks);
  if (boot && start) {
    page.Gauge("process_start_time_seconds",
               "When the process started, in seconds since 1970. A change is a restart.",
               static_cast<double>(*boot) + static_cast<double>(*start) / ticks_per_second);
  }
}

}  // namespace ckv
