#include "server/telemetry/log_output.h"

#include <spdlog/details/log_msg.h>
#include <spdlog/details/os.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/trace_context.h"

namespace ckv {
namespace {

std::string_view View(spdlog::string_view_t text) { return {text.data(), text.size()}; }

// A log that cannot be written is not worth the daemon: what is left of the line is dropped.
void WriteToStderr(std::string_view line) {
  while (!line.empty()) {
    const ssize_t count = write(STDERR_FILENO, line.data(), line.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    line.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

LogOutput::LogOutput(LogStyle style, Clock* clock, Writer writer)
    : clock_(clock), writer_(std::move(writer)), style_(std::move(style)) {}

void LogOutput::SetStyle(LogStyle style) {
  absl::MutexLock lock(&mu_);
  style.under_journald = style_.under_journald;
  style_ = std::move(style);
}

void LogOutput::Tick() {
  const Instant now = clock_->Now();
  absl::MutexLock lock(&mu_);
  ReportLeftOut(now);
}

uint64_t LogOutput::left_out_count() const {
  absl::MutexLock lock(&mu_);
  return limiter_.left_out_count();
}

void LogOutput::log(const spdlog::details::log_msg& message) {
  const Instant now = clock_->Now();
  const char* const file = message.source.filename;
  const LogPlaceKey place = {
      .file = file == nullptr ? "" : file, .line = message.source.line, .level = message.level};
  const TraceContext* const trace = CurrentTrace();
  const std::string trace_id = trace == nullptr ? "" : ToHex(trace->trace_id);
  absl::MutexLock lock(&mu_);
  ReportLeftOut(now);
  if (!limiter_.Admit(place, View(message.payload), now)) return;
  Write({.unix_ms = message.time.time_since_epoch() / std::chrono::milliseconds(1),
         .level = message.level,
         .text = View(message.payload),
         .file = place.file,
         .line = place.line,
         .thread = message.thread_id,
         .trace_id = trace_id});
}

void LogOutput::flush() {
  absl::MutexLock lock(&mu_);
  ReportLeftOut(kInstantMax);
}

void LogOutput::ReportLeftOut(Instant now) {
  for (const LeftOutLines& left_out : limiter_.TakeLeftOut(now)) {
    const std::string text =
        absl::StrFormat("%d more lines like this were left out: %s", left_out.count, left_out.last);
    Write({.unix_ms = static_cast<int64_t>(WallClockMilliseconds()),
           .level = left_out.place.level,
           .text = text,
           .file = left_out.place.file,
           .line = left_out.place.line,
           .thread = spdlog::details::os::thread_id(),
           .trace_id = {}});
  }
}

void LogOutput::Write(const LogLine& line) {
  buffer_.clear();
  AppendLogLine(style_, line, buffer_);
  writer_(buffer_);
}

std::shared_ptr<LogOutput> LogToStderr(LogStyle style) {
  style.under_journald = IsJournal(std::getenv("JOURNAL_STREAM"), STDERR_FILENO);
  auto output = std::make_shared<LogOutput>(std::move(style), Clock::Real(), WriteToStderr);
  Logger().sinks() = {output};
  return output;
}

}  // namespace ckv
