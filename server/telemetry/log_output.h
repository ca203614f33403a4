// The sink of a daemon's log: one format, a limit for each place in the source, and whole lines.

#pragma once

#include <spdlog/sinks/sink.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "server/telemetry/log_limit.h"
#include "server/telemetry/log_line.h"

namespace ckv {

// Thread-safe.
class LogOutput final : public spdlog::sinks::sink {
 public:
  // Receives one whole line including its newline. Calls are serialized.
  using Writer = std::function<void(std::string_view line)>;

  // `clock` measures the periods of the limits and must outlive this object. The time of a line is
  // spdlog's.
  LogOutput(LogStyle style, Clock* clock, Writer writer);

  // Changes the format and the names from the next line on. `under_journald` keeps its value.
  void SetStyle(LogStyle style) ABSL_LOCKS_EXCLUDED(mu_);
  // Logs the number of lines omitted in ended periods. Call at least every second.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t left_out_count() const ABSL_LOCKS_EXCLUDED(mu_);

  void log(const spdlog::details::log_msg& message) override ABSL_LOCKS_EXCLUDED(mu_);
  // Logs the number of all omitted lines immediately. Call before the process ends.
  void flush() override ABSL_LOCKS_EXCLUDED(mu_);
  // Do nothing: the format is the style.
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

 private:
  void ReportLeftOut(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Write(const LogLine& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  const Writer writer_;

  mutable absl::Mutex mu_;
  LogStyle style_ ABSL_GUARDED_BY(mu_);
  LogLimiter limiter_ ABSL_GUARDED_BY(mu_);
  std::string buffer_ ABSL_GUARDED_BY(mu_);
};

// Makes stderr, in this style, the only sink of Logger(), and returns the sink. Detects whether
// journald reads stderr. Call before other threads write to the log.
std::shared_ptr<LogOutput> LogToStderr(LogStyle style);

}  // namespace ckv
