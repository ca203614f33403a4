// The measured constants that the predicate computes with. None is typed in: a profile is filled by
// probes and live completions, or read from a calibration file.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "attention/partial.h"
#include "proto/clock.h"
#include "proto/geometry.h"

namespace ckv {

// Of one fabric to one holder. Microseconds and bytes per second, as in design 5.
struct FabricConstants {
  double t_probe_us = 0;
  double bandwidth_bytes_per_s = 0;
};

// Of one holder's compute for one geometry: T_compute = base + rows x tokens x per_row_token.
struct ComputeConstants {
  double base_us = 0;
  double per_row_token_us = 0;
};

// Of this requester.
struct RequesterConstants {
  double merge_per_row_us = 0;           // one partial row of d_v, per part
  double splice_per_token_layer_us = 0;  // rotate and scatter one row
  double attend_per_row_token_us = 0;    // the same kernel, here
  // Prefill of one token at one layer; absent where no engine is attached, so that recomputing is
  // not offered.
  std::optional<double> prefill_per_token_layer_us;
};

// The constants of the fabric to one holder, kept true by the requests that use it. Empty until the
// first Set, which comes from a probe. Thread-safe; a lost race loses one sample.
class LiveFabric {
 public:
  void Set(const FabricConstants& constants);
  std::optional<FabricConstants> Get() const;

  // One completed request: `bytes` in both directions took `us`, the holder's queue and kernel
  // taken off. Small ones tell T_probe, large ones the bandwidth, those between tell nothing. A
  // sample counts 1/16 and is cut to within a factor 2 of what is known, so one scheduler pause
  // moves a constant by 6 % at most, and a real change is followed in some 30 requests.
  void Observe(uint64_t bytes, double us);

  static constexpr uint64_t kSmallBytesMax = 4u << 10;
  static constexpr uint64_t kLargeBytesMin = 128u << 10;

 private:
  std::atomic<double> t_probe_us_{0};
  std::atomic<double> bandwidth_bytes_per_s_{0};  // 0: nothing known
};

// Times the merge, the kernel and the rotation here, on a few rows of the geometry: about a
// millisecond, once a geometry. Takes the fastest of several runs, the one least disturbed.
RequesterConstants CalibrateHere(const Geometry& geometry, Clock& clock);

}  // namespace ckv
