#include "client/cost/live_kernel.h"

#include <algorithm>
#include <cmath>

namespace ckv {
namespace {

// Returns the factor of memory with which reading and computing take `us` together: the longer, and
// the share of the shorter. If computing alone takes longer, reading does not show: returns a
// factor with which it is hidden, or 0.
double MemoryFactorOf(const KernelTime& time, double computing_us, double us) {
  const double share = time.shown_share;
  if (us >= computing_us * (1 + share)) return (us - share * computing_us) / time.memory_us;
  return share > 0 ? std::max(0.0, us - computing_us) / (share * time.memory_us)
                   : us / time.memory_us;
}

// Returns the factor of the fixed part and of computing with which the call takes `us`, if reading
// takes `reading_us`. That time may be wrong, because calls of this kind teach nothing about
// memory. So reading counts for no more than what leaves the rest as likely:
//   computing takes longer, as measured   reading takes as long as computing
//   else the fixed part is most of it     reading takes half of the call
double ComputeFactorOf(const KernelTime& time, double reading_us, double us) {
  const double share = time.shown_share;
  if (time.compute_us >= time.memory_us)
    return (us - share * std::min(reading_us, us / (1 + share))) /
           (time.fixed_us + time.compute_us);
  return (us - std::min(reading_us, us / 2)) / (time.fixed_us + share * time.compute_us);
}

}  // namespace

void LiveKernel::Observe(const KernelTime& time, double us) {
  const LiveFactors now = Get();
  const double measured_us = time.Us(), predicted_us = time.Us(now);
  if (!(measured_us > 0) || !(us > 0) || !std::isfinite(predicted_us) || !std::isfinite(us)) return;
  if (time.MemoryPartUs() > kMemoryShareMin * measured_us) {
    // The fixed time takes its part of a deviation, because a call of this kind cannot show whose
    // it is.
    const double varying_us = us * (1 - now.compute * time.fixed_us / predicted_us);
    memory_.Follow(MemoryFactorOf(time, now.compute * time.compute_us, varying_us));
  } else {
    compute_.Follow(ComputeFactorOf(time, now.memory * time.memory_us, us));
  }
}

}  // namespace ckv
