// The measured constants that the predicate computes with. None is typed in: a profile is filled by
// probes and live completions, or read from a calibration file.

#pragma once

#include <cstdint>
#include <optional>

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

}  // namespace ckv
