// The three formats of a line of ckvd's log.
//
//   text     2026-11-25T09:55:50.123Z warning h1: chunk ab... is damaged
//   logfmt   ts=2026-11-25T09:55:50.123Z level=warn name=h1 role=holder src=scrubber.cc:87 tid=71
//            msg="h1: chunk ab... is damaged"   (one line)
//   json     {"ts":"2026-11-25T09:55:50.123Z","level":"warn","name":"h1","role":"holder",
//            "src":"scrubber.cc:87","tid":71,"msg":"h1: chunk ab... is damaged"}   (one line)
//
// Under journald no line has a time, and each begins with its priority, `<4>`, as sd-daemon(3)
// says. journald takes the priority off, and keeps a time of its own.

#pragma once

#include <spdlog/common.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckv {

enum class LogFormat : uint8_t { kText, kLogfmt, kJson };

// Takes "text", "logfmt" or "json".
//   InvalidArgument     another word.
absl::StatusOr<LogFormat> ParseLogFormat(std::string_view word);

struct LogStyle {
  LogFormat format = LogFormat::kText;
  bool under_journald = false;
  std::string name;   // this process'; if empty, it is not known yet and has no field
  std::string roles;  // "holder+requester"; if empty, it has no field
};

// Bytes of a message that a line shows; the line counts the others. An escape takes at most 6 bytes
// for one (\u001b), so a line stays below 48 KiB, where journald cuts (LineMax= of
// journald.conf(5)).
inline constexpr size_t kLogTextBytesMax = 7 << 10;

struct LogLine {
  int64_t unix_ms = 0;  // wall clock
  spdlog::level::level_enum level = spdlog::level::info;
  std::string_view text;
  std::string_view file;  // path of the source; the line has its last part. If empty, no field
  int line = 0;
  uint64_t thread = 0;        // as gettid(2)
  std::string_view trace_id;  // 32 hexadecimal digits; if empty, no field
};

// Appends one line with its newline. No byte of `line` or of the style's names can end it early,
// end a value, or make a field of its own.
void AppendLogLine(const LogStyle& style, const LogLine& line, std::string& out);

// Returns whether `fd` is the stream that `journal_stream` names, as systemd.exec(5) says: journald
// reads it. `journal_stream` is the value of JOURNAL_STREAM, null if it is not set.
bool IsJournal(const char* journal_stream, int fd);

}  // namespace ckv
