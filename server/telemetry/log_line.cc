// Formats one line of the log. AppendLogLine takes one of two ways: AppendText for people, or
// AppendFields for logfmt and JSON, with the same fields in the same order. Under journald the time
// is left out, and a priority is put first. Texts are cut and escaped, because they contain names
// that peers chose.

#include "server/telemetry/log_line.h"

#include <sys/stat.h>

#include <ctime>

#include "absl/strings/str_format.h"
#include "server/telemetry/escape.h"

namespace ckv {
namespace {

std::string TimeText(int64_t unix_ms) {
  const time_t seconds = unix_ms / 1000;
  tm parts{};
  gmtime_r(&seconds, &parts);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900,
                         parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                         unix_ms % 1000);
}

// The words of option log.level.
std::string_view LevelWord(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
      return "trace";
    case spdlog::level::debug:
      return "debug";
    case spdlog::level::info:
      return "info";
    case spdlog::level::warn:
      return "warn";
    default:
      return "error";
  }
}

// The priorities of syslog(3).
int Priority(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
    case spdlog::level::debug:
      return 7;
    case spdlog::level::info:
      return 6;
    case spdlog::level::warn:
      return 4;
    case spdlog::level::err:
      return 3;
    default:
      return 2;
  }
}

std::string PlaceText(const LogLine& line) {
  if (line.file.empty()) return "";
  const size_t slash = line.file.rfind('/');
  return absl::StrFormat("%s:%d",
                         slash == std::string_view::npos ? line.file : line.file.substr(slash + 1),
                         line.line);
}

// Appends fields one after another, in logfmt or JSON. Names are constants of ours.
class Fields {
 public:
  Fields(bool json, std::string& out) : json_(json), out_(out) {
    if (json_) out_ += '{';
  }
  void Text(std::string_view name, std::string_view value) {
    if (value.empty()) return;
    Name(name);
    if (json_) {
      out_ += '"';
      AppendJsonText(value, out_);
      out_ += '"';
    } else {
      AppendLogfmtValue(value, out_);
    }
  }
  void Number(std::string_view name, uint64_t value) {
    Name(name);
    out_ += absl::StrFormat("%d", value);
  }
  void End() {
    if (json_) out_ += '}';
  }

 private:
  void Name(std::string_view name) {
    if (!first_) out_ += json_ ? ',' : ' ';
    first_ = false;
    out_ += json_ ? absl::StrFormat("\"%s\":", name) : absl::StrFormat("%s=", name);
  }

  const bool json_;
  std::string& out_;
  bool first_ = true;
};

std::string ShownText(std::string_view text) {
  const std::string_view shown = CutText(text, kLogTextBytesMax);
  if (shown.size() == text.size()) return std::string(text);
  return absl::StrFormat("%s... (%d bytes more)", shown, text.size() - shown.size());
}

void AppendText(const LogStyle& style, const LogLine& line, std::string& out) {
  if (!style.under_journald) out += TimeText(line.unix_ms) + " ";
  const auto level = spdlog::level::to_string_view(line.level);
  out.append(level.data(), level.size());
  out += ' ';
  AppendPlainText(ShownText(line.text), out);
  if (!line.trace_id.empty()) out += absl::StrFormat(" trace_id=%s", line.trace_id);
}

void AppendFields(const LogStyle& style, const LogLine& line, std::string& out) {
  Fields fields(style.format == LogFormat::kJson, out);
  if (!style.under_journald) fields.Text("ts", TimeText(line.unix_ms));
  fields.Text("level", LevelWord(line.level));
  fields.Text("name", style.name);
  fields.Text("role", style.roles);
  fields.Text("src", PlaceText(line));
  fields.Number("tid", line.thread);
  fields.Text("trace_id", line.trace_id);
  fields.Text("msg", ShownText(line.text));
  fields.End();
}

}  // namespace

absl::StatusOr<LogFormat> ParseLogFormat(std::string_view word) {
  if (word == "text") return LogFormat::kText;
  if (word == "logfmt") return LogFormat::kLogfmt;
  if (word == "json") return LogFormat::kJson;
  return absl::InvalidArgumentError(absl::StrFormat("'%s' is not text, logfmt or json", word));
}

void AppendLogLine(const LogStyle& style, const LogLine& line, std::string& out) {
  if (style.under_journald) out += absl::StrFormat("<%d>", Priority(line.level));
  if (style.format == LogFormat::kText) {
    AppendText(style, line, out);
  } else {
    AppendFields(style, line, out);
  }
  out += '\n';
}

bool IsJournal(const char* journal_stream, int fd) {
  struct stat found {};
  if (journal_stream == nullptr || fstat(fd, &found) != 0) return false;
  return absl::StrFormat("%d:%d", found.st_dev, found.st_ino) == journal_stream;
}

}  // namespace ckv
