#include "client/learn/live_here.h"

namespace ckv {
namespace {

double Us(const ComputeCurve& attend, double per_row_token_us, double rows, double tokens) {
  return attend.empty() ? rows * tokens * per_row_token_us : attend.Us(rows, tokens);
}

}  // namespace

void LiveHere::SetKnown(const RowWidths& widths, const RequesterConstants& here) {
  absl::MutexLock lock(&mu_);
  const uint32_t count = count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (known_[i].widths == widths) return;
  }
  if (count == kWidthsMax) return;
  known_[count].widths = widths;
  known_[count].attend = here.attend;
  known_[count].per_row_token_us = here.attend_per_row_token_us;
  count_.store(count + 1, std::memory_order_release);
}

void LiveHere::Observe(const RowWidths& widths, double rows, double tokens, double us) {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    Known& known = known_[i];
    if (known.widths != widths) continue;
    known.live.Observe(Us(known.attend, known.per_row_token_us, rows, tokens), us);
    if (known.seen.load(std::memory_order_relaxed) < BestWindow::kCount)
      known.seen.fetch_add(1, std::memory_order_relaxed);
    return;
  }
}

double LiveHere::Factor(const RowWidths& widths) const {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (known_[i].widths == widths) return known_[i].live.Get();
  }
  return 1;
}

bool LiveHere::Learned(const RowWidths& widths) const {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (known_[i].widths == widths)
      return known_[i].seen.load(std::memory_order_relaxed) >= BestWindow::kCount;
  }
  return false;
}

double AttendHereUs(const RequesterConstants& here, double rows, double tokens) {
  return Us(here.attend, here.attend_per_row_token_us, rows, tokens);
}

RequesterConstants WithAttendFactor(RequesterConstants here, double factor) {
  here.attend_per_row_token_us *= factor;
  here.attend.base_us *= factor;
  here.attend.per_row_us *= factor;
  for (uint32_t i = 0; i < here.attend.anchor_count; ++i)
    here.attend.anchors[i].us_per_token *= factor;
  return here;
}

}  // namespace ckv
