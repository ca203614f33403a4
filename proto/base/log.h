// The log of ckv's libraries and programs, which never writes to stdout.

#pragma once

#include <spdlog/logger.h>

#include <utility>

namespace ckv {

// Thread-safe; the logger is never destroyed. It writes warnings and errors to stderr. A program
// that embeds ckv may change its level (spdlog::level::off silences it), its pattern and its sinks
// before it uses any other part of ckv.
spdlog::logger& Logger();

// A place in the source that writes to Logger(). Each log line carries the place's file and line,
// so that a sink can distinguish places and rate-limit each one. A message contains no secret at
// any level: no lane token, no rows, no token ids, no call metadata.
class LogPlace {
 public:
  explicit LogPlace(const spdlog::source_loc& place) : place_(place) {}

  template <typename... Args>
  void log(spdlog::level::level_enum level, spdlog::format_string_t<Args...> format,
           Args&&... args) const {
    Logger().log(place_, level, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void debug(spdlog::format_string_t<Args...> format, Args&&... args) const {
    log(spdlog::level::debug, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void info(spdlog::format_string_t<Args...> format, Args&&... args) const {
    log(spdlog::level::info, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warn(spdlog::format_string_t<Args...> format, Args&&... args) const {
    log(spdlog::level::warn, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void error(spdlog::format_string_t<Args...> format, Args&&... args) const {
    log(spdlog::level::err, format, std::forward<Args>(args)...);
  }

 private:
  spdlog::source_loc place_;
};

// Returns the caller's place. Write `Log().warn("{} is gone", name)` and omit the arguments of Log.
inline LogPlace Log(const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                    const char* function = __builtin_FUNCTION()) {
  return LogPlace(spdlog::source_loc(file, line, function));
}

}  // namespace ckv
