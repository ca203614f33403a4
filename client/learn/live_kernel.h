// Learns from calls how much slower or faster a kernel computes, and its rows come in, than they
// were measured.

#pragma once

#include "client/decide/compute_curve.h"
#include "client/learn/live_compute.h"

namespace ckv {

// Two factors, so that what slows memory down is not taken for a slow processor, and the other way
// round. A neighbour that takes memory's bandwidth makes calls of few query rows slower, those of
// many hardly. A lower clock rate does the opposite. Rows that are found in a cache make memory
// look fast. Thread-safe; a lost race loses one sample.
//
// A call teaches one of the two, and takes the other factor as known. By the constants as they were
// measured, it teaches memory if that is more than kMemoryShareMin of its time, else computing. So
// a call of many query rows never moves the memory factor, whatever is to blame. A call of few
// never moves the compute factor.
//
// Two kinds of calls in turns find both factors. Let memory be w of a call that teaches memory, and
// v of one that teaches computing. An error of one factor comes back, after both have learnt, as
// (1 - w) / w x v / (1 - v) of itself. That is below 1, because v <= kMemoryShareMin < w. Factors
// change w / (1 - w) and v / (1 - v) alike.
class LiveKernel {
 public:
  static constexpr double kMemoryShareMin = 0.25;

  // Takes one kernel call. It took `us`; the measured constants say `time`. Anything not above 0,
  // or not finite, is ignored.
  void Observe(const KernelTime& time, double us);
  LiveFactors Get() const { return {compute_.Get(), memory_.Get()}; }
  // Starts anew at 1, because predictions use other constants from now on.
  void Reset() {
    compute_.Reset();
    memory_.Reset();
  }

 private:
  LiveCompute compute_, memory_;
};

}  // namespace ckv
