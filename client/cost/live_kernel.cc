#include "client/cost/live_kernel.h"

#include <algorithm>
#include <cmath>

namespace ckv {
namespace {

// Returns the factor of one of two terms with which the longer term, and the share of the shorter,
// take `us` together. If the other term alone takes longer, this one does not show: returns a
// factor with which it is hidden, or 0.
double FactorOf(double term_us, double other_us, double share, double us) {
  if (us >= other_us * (1 + share)) return (us - share * other_us) / term_us;
  return share > 0 ? std::max(0.0, us - other_us) / (share * term_us) : us / term_us;
}

}  // namespace

void LiveKernel::Observe(const KernelTime& time, double us) {
  const LiveFactors now = Get();
  const double measured_us = time.Us(), predicted_us = time.Us(now);
  if (!(measured_us > 0) || !(us > 0) || !std::isfinite(predicted_us) || !std::isfinite(us)) return;
  // The fixed time takes its part of a deviation. That part is small in a long call. In a short
  // call it cannot be decided which term was off.
  const double fixed_us = now.compute * time.fixed_us;
  const double varying_us = us * (1 - fixed_us / predicted_us);
  const double computing_us = now.compute * time.compute_us;
  const double reading_us = now.memory * time.memory_us;
  const bool of_memory = time.MemoryPartUs() > kMemoryShareMin * measured_us;
  if (of_memory) {
    memory_.Follow(FactorOf(time.memory_us, computing_us, time.shown_share, varying_us));
  } else if (time.compute_us > 0) {
    compute_.Follow(FactorOf(time.compute_us, reading_us, time.shown_share, varying_us));
  } else {
    compute_.Observe(predicted_us / now.compute, us);  // nothing but what is fixed
  }
}

}  // namespace ckv
