#include "transport/wait_policy.h"

#include <algorithm>

namespace ckv {

void WaitPolicy::Came(Instant now) {
  const Duration wait = now - begun_;
  if (wait <= spin_max_) return;  // needs no prediction, and says nothing of the longer ones
  before_ = last_;
  last_ = wait;
}

bool WaitPolicy::Spins(Instant now) const {
  if (spin_max_ == Duration::zero()) return false;
  const Duration waited = now - begun_;
  const Duration longer = std::max(last_, before_);
  return waited < (longer <= kPredictMax ? longer + spin_max_ : spin_max_);
}

}  // namespace ckv
