#include "server/telemetry/log_limit.h"

#include <algorithm>
#include <utility>

#include "server/telemetry/escape.h"
#include "server/telemetry/log_line.h"

namespace ckv {
namespace {

uint32_t LinesMax(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return kLogErrorLinesMax;
  return level <= spdlog::level::debug ? kLogDebugLinesMax : kLogLinesMax;
}

}  // namespace

bool LogLimiter::Admit(const LogPlaceKey& place, std::string_view text, Instant now) {
  LogPlaceKey key = place;
  if (!periods_.contains(key) && periods_.size() >= kLogPlacesMax) {
    key = {.file = "", .line = 0, .level = place.level};  // one per level: errors keep their own
  }
  Period& period = periods_[key];
  // A period with omitted lines ends when they are reported: the caller calls TakeLeftOut first.
  if (period.line_count == 0 || (now >= period.end && period.left_out == 0)) {
    period = {.end = now + kLogPeriod, .line_count = 0, .left_out = 0, .last = {}};
  }
  if (period.line_count < LinesMax(place.level)) {
    ++period.line_count;
    return true;
  }
  ++period.left_out;
  ++left_out_count_;
  period.last = std::string(CutText(text, kLogTextBytesMax));
  next_end_ = std::min(next_end_, period.end);
  return false;
}

std::vector<LeftOutLines> LogLimiter::TakeLeftOut(Instant now) {
  std::vector<LeftOutLines> due;
  if (now < next_end_) return due;
  next_end_ = kInstantMax;
  for (auto& [place, period] : periods_) {
    if (period.left_out == 0) continue;
    if (now < period.end) {
      next_end_ = std::min(next_end_, period.end);
      continue;
    }
    due.push_back({place, std::exchange(period.left_out, 0), std::move(period.last)});
    period = {};
  }
  return due;
}

}  // namespace ckv
