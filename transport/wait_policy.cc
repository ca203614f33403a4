#include "transport/wait_policy.h"

#include <algorithm>
#include <utility>

#include "proto/base/pause_cpu.h"

namespace ckv {

void WaitPolicy::Came(Instant now) {
  const Duration wait = now - begun_;
  if (wait <= spin_max_) return;  // needs no prediction, and says nothing of the longer ones
  before_ = last_;
  last_ = wait;
}

bool WaitPolicy::Spins(Instant now) const {
  if (spin_max_ == Duration::zero() || now < shared_until_) return false;
  const Duration waited = now - begun_;
  const Duration longer = std::max(last_, before_);
  return waited < (longer <= kPredictMax ? longer + spin_max_ : spin_max_);
}

bool WaitPolicy::Rest(Clock& clock, Instant now) {
  if (!Spins(now)) return false;
  if (now - std::max(yielded_, begun_) < kYieldEvery) {
    PauseCpu();
    return true;
  }
  yield_();
  const Instant after = clock.Now();
  Yielded(after, after - now);
  return true;
}

void WaitPolicy::Yielded(Instant now, Duration took) {
  const bool is_long_ago = now - yielded_ - took > kSharedMin;
  yielded_ = now;
  const bool was_shared = std::exchange(last_was_shared_, took >= kShared) && !is_long_ago;
  if (!was_shared || !last_was_shared_) return;
  last_was_shared_ = false;  // the next time takes two more
  // Long after the last time, it is another crowd.
  const bool again = now - shared_until_ < shared_for_;
  shared_for_ = again ? std::min(2 * shared_for_, kSharedMax) : kSharedMin;
  shared_until_ = now + shared_for_;
}

}  // namespace ckv
