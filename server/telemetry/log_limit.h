// Limits how often one place in the source writes to the log. A peer or disk that fails in a loop
// then does not drown other lines.

#pragma once

#include <spdlog/common.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/base/clock.h"

namespace ckv {

// A place's lines are counted for this time, starting at its first line. Then omitted lines are
// reported, and the next line begins another period.
inline constexpr Duration kLogPeriod = std::chrono::seconds(10);
// The maximum number of lines of one place per period. 100 places that each write 20 lines per
// period write 6,000 lines in 30 s. In that time, journald accepts 10,000 lines from a service and
// drops the others (RateLimitBurst=).
inline constexpr uint32_t kLogLinesMax = 20;
// The same for errors, each of which often names a different lost thing; and for debug and trace
// lines, which an operator has enabled.
inline constexpr uint32_t kLogErrorLinesMax = 100;
inline constexpr uint32_t kLogDebugLinesMax = 200;
// The maximum number of places with their own limit; further places share one limit per level. ckvd
// has 100 places, gRPC's library a few more.
inline constexpr size_t kLogPlacesMax = 1024;

// A place in the source. `file` must be a string literal.
struct LogPlaceKey {
  std::string_view file;
  int line = 0;
  spdlog::level::level_enum level = spdlog::level::info;

  friend bool operator==(const LogPlaceKey&, const LogPlaceKey&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const LogPlaceKey& key) {
    return H::combine(std::move(hash), key.file, key.line, key.level);
  }
};

// How many lines of a place were omitted in a period. The text of the last one is kept, so that an
// error is not lost completely if only one of its kind occurred.
struct LeftOutLines {
  LogPlaceKey place;
  uint64_t count = 0;
  std::string last;
};

// Used by one thread at a time.
class LogLimiter {
 public:
  // Returns true if the line `text` of `place` must be written. Otherwise counts the line as
  // omitted. Call TakeLeftOut first.
  bool Admit(const LogPlaceKey& place, std::string_view text, Instant now);

  // Returns the lines omitted in periods that have ended by `now`, each once. kInstantMax ends all
  // periods.
  std::vector<LeftOutLines> TakeLeftOut(Instant now);

  // Returns how many lines were omitted since the start.
  uint64_t left_out_count() const { return left_out_count_; }

 private:
  struct Period {
    Instant end;
    uint32_t line_count = 0;
    uint64_t left_out = 0;
    std::string last;
  };

  absl::flat_hash_map<LogPlaceKey, Period> periods_;
  Instant next_end_ = kInstantMax;  // not after the end of any period with omitted lines
  uint64_t left_out_count_ = 0;
};

}  // namespace ckv
