// Limits how often one place in the source writes to the log. So a peer or a disk that fails in a
// loop does not drown the rest.

#pragma once

#include <spdlog/common.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/base/clock.h"

namespace ckv {

// A place's lines are counted for this time from its first one. Then what was left out is told, and
// the next line begins another period.
inline constexpr Duration kLogPeriod = std::chrono::seconds(10);
// Lines of one place in a period. 100 places that all write 20 lines a period are 6,000 in 30 s.
// journald takes 10,000 from a service in that time, and drops the others (RateLimitBurst=).
inline constexpr uint32_t kLogLinesMax = 20;
// The same for errors, which often name what was lost, each another one; and for debug and trace,
// which somebody has asked for.
inline constexpr uint32_t kLogErrorLinesMax = 100;
inline constexpr uint32_t kLogDebugLinesMax = 200;
// Places that are told apart; the others share one limit. ckvd has 100, gRPC's library some more.
inline constexpr size_t kLogPlacesMax = 1024;

// A place in the source. `file` is a literal.
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

// How many lines of a place a period left out. The last of them is kept, so that no error is lost
// wholly, if only one of its kind came.
struct LeftOutLines {
  LogPlaceKey place;
  uint64_t count = 0;
  std::string last;
};

// Used by one thread at a time.
class LogLimiter {
 public:
  // Returns whether to write a line of `place`, which holds `text`. If not, it is counted.
  bool Admit(const LogPlaceKey& place, std::string_view text, Instant now);

  // Returns what was left out in periods that have ended by `now`, once. kInstantMax ends them all.
  std::vector<LeftOutLines> TakeLeftOut(Instant now);

  // Returns how many lines were left out since the start.
  uint64_t left_out_count() const { return left_out_count_; }

 private:
  struct Period {
    Instant end;
    uint32_t line_count = 0;
    uint64_t left_out = 0;
    std::string last;
  };

  absl::flat_hash_map<LogPlaceKey, Period> periods_;
  Instant next_end_ = kInstantMax;  // at most the end of any period that left lines out
  uint64_t left_out_count_ = 0;
};

}  // namespace ckv
