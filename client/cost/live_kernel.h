// Learns from calls how much slower or faster a kernel computes and reads its rows than when it was
// measured.

#pragma once

#include "client/cost/compute_curve.h"
#include "client/cost/live_compute.h"

namespace ckv {

// Two factors, so that slow memory is not mistaken for a slow processor, or the reverse. Another
// process that uses memory bandwidth slows down calls of few query rows, but hardly those of many.
// A lower clock rate does the opposite. Rows that are found in a processor cache make memory look
// fast. Thread-safe; a lost race loses one sample.
//
// A call updates one of the two factors, and takes the other as known. It updates the memory factor
// if memory is more than kMemoryShareMin of its time, by the constants as measured. Otherwise it
// updates the compute factor, which also scales the fixed time of a call. So a call of many query
// rows never changes the memory factor, whatever the cause. A call that mostly reads never changes
// the compute factor. A short one whose time is mostly fixed does.
//
// Both kinds of calls in alternation find both factors. Let memory be a share w of a call that
// updates memory, and v of one that updates computing. After both updates, an error of one factor
// is (1 - w) / w x v / (1 - v) of itself. That is below 1, because v <= kMemoryShareMin < w. The
// factors scale w / (1 - w) and v / (1 - v) alike.
class LiveKernel {
 public:
  static constexpr double kMemoryShareMin = 0.25;

  // Takes one kernel call, which took `us`. The measured constants predict `time`. Ignores anything
  // that is not above 0 or not finite.
  void Observe(const KernelTime& time, double us);
  LiveFactors Get() const { return {compute_.Get(), memory_.Get()}; }
  // Starts again at 1, because predictions use other constants from now on.
  void Reset() {
    compute_.Reset();
    memory_.Reset();
  }

 private:
  LiveCompute compute_, memory_;
};

}  // namespace ckv
