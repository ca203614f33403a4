#include "client/cost/live_here.h"

namespace ckv {
namespace {

bool AttendsAlike(const RequesterConstants& a, const RequesterConstants& b) {
  return a.attend_per_row_token_us == b.attend_per_row_token_us &&
         a.attend_floor == b.attend_floor && a.attend == b.attend;
}

}  // namespace

void LiveHere::SetKnown(const RowWidths& widths, const RequesterConstants& here) {
  absl::MutexLock lock(&mu_);
  const uint32_t count = count_.load(std::memory_order_relaxed);
  uint32_t i = 0;
  while (i < count && known_[i].widths != widths) ++i;
  if (i == kWidthsMax) return;
  Known& known = known_[i];
  const RequesterConstants* const before = known.here.load(std::memory_order_relaxed);
  if (before != nullptr && AttendsAlike(*before, here)) return;
  if (versions_.size() == kVersionsMax) return;
  versions_.push_back(std::make_unique<const RequesterConstants>(here));
  known.here.store(versions_.back().get(), std::memory_order_release);
  known.live.Reset();
  if (i < count) return;
  known.widths = widths;
  count_.store(count + 1, std::memory_order_release);
}

void LiveHere::Observe(const RowWidths& widths, double rows, std::span<const SharedRun> runs,
                       double us, Instant now) {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    Known& known = known_[i];
    if (known.widths != widths) continue;
    const RequesterConstants& here = *known.here.load(std::memory_order_acquire);
    const Instant before = {known.seen_ns.exchange(now.ns, std::memory_order_relaxed)};
    if (now - before > kAgeMax) known.live.Reset();
    known.live.Observe(AttendHereTime(here, rows, runs), us);
    if (known.seen.load(std::memory_order_relaxed) < BestWindow::kCount)
      known.seen.fetch_add(1, std::memory_order_relaxed);
    return;
  }
}

double LiveHere::ExpectedUs(const RowWidths& widths, double rows,
                            std::span<const SharedRun> runs) const {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const Known& known = known_[i];
    if (known.widths != widths) continue;
    const RequesterConstants& here = *known.here.load(std::memory_order_acquire);
    return AttendHereTime(here, rows, runs).Us(known.live.Get());
  }
  return 0;
}

LiveFactors LiveHere::Factors(const RowWidths& widths, Instant now) const {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const Known& known = known_[i];
    if (known.widths != widths) continue;
    const Instant seen = {known.seen_ns.load(std::memory_order_relaxed)};
    return now - seen > kAgeMax ? LiveFactors() : known.live.Get();
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
