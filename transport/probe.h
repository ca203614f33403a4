// Measures a lane's two constants: T_probe and BW.

#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

struct ProbeOptions {
  uint32_t warmup_count = 16;
  uint32_t round_count = 64;
  uint32_t bandwidth_round_count = 8;
  Instant deadline = kInstantMax;
  uint64_t session = 0;  // the lane's session; a holder refuses strangers
  uint64_t epoch = 0;
  uint16_t wire_version = kWireVersion;  // the version of the session
};

struct ProbeResult {
  double t_probe_us_p50 = 0;  // payload-free round trip
  double t_probe_us_p99 = 0;
  // Bytes of both directions per second, from echoes of full slots. t_probe_us_p50 is subtracted
  // from the time of an echo. Zero if the echo was not slower than the probe.
  double bandwidth_bytes_per_s = 0;
};

// Exchanges payload-free frames, then full slots, over an idle lane. The caller owns the lane's
// thread.
//   Unavailable         the lane broke.
//   DeadlineExceeded    a reply did not come by the deadline of `options`.
absl::StatusOr<ProbeResult> Probe(RequestLane& lane, Clock& clock, const ProbeOptions& options);

}  // namespace ckv
