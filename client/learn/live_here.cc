#include "client/learn/live_here.h"

namespace ckv {

void LiveHere::SetKnown(const RowWidths& widths, const RequesterConstants& here) {
  absl::MutexLock lock(&mu_);
  const uint32_t count = count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (known_[i].widths == widths) return;
  }
  if (count == kWidthsMax) return;
  known_[count].widths = widths;
  known_[count].here = here;
  count_.store(count + 1, std::memory_order_release);
}

void LiveHere::Observe(const RowWidths& widths, double rows, double tokens, double us) {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    Known& known = known_[i];
    if (known.widths != widths) continue;
    known.live.Observe(AttendHereTime(known.here, rows, tokens), us);
    if (known.seen.load(std::memory_order_relaxed) < BestWindow::kCount)
      known.seen.fetch_add(1, std::memory_order_relaxed);
    return;
  }
}

LiveFactors LiveHere::Factors(const RowWidths& widths) const {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (known_[i].widths == widths) return known_[i].live.Get();
  }
  return {};
}

bool LiveHere::Learned(const RowWidths& widths) const {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (known_[i].widths == widths)
      return known_[i].seen.load(std::memory_order_relaxed) >= BestWindow::kCount;
  }
  return false;
}

RequesterConstants WithAttendFactors(RequesterConstants here, const LiveFactors& live) {
  here.attend_per_row_token_us *= live.compute;
  here.attend.base_us *= live.compute;
  here.attend.per_row_us *= live.compute;
  for (uint32_t i = 0; i < here.attend.anchor_count; ++i)
    here.attend.anchors[i].us_per_token *= live.compute;
  here.attend_floor.us_per_token *= live.memory;
  here.attend.floor.us_per_token *= live.memory;
  return here;
}

}  // namespace ckv
