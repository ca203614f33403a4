// Measures the two constants of a lane: its round trip (T_probe) and its bandwidth (BW).

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
  uint64_t session = 0;  // the lane's session; a holder refuses unknown ones
  uint64_t epoch = 0;
};

struct ProbeResult {
  double t_probe_us_p50 = 0;  // payload-free round trip
  // Bytes of both directions per second, from echoes of full slots. t_probe_us_p50 is subtracted
  // from the time of an echo. Zero if the echo was not slower than the probe, or was not measured.
  double bandwidth_bytes_per_s = 0;
};

// Exchanges payload-free frames, then full slots, over an idle lane. Call it on the lane's thread.
//   InvalidArgument     a count of rounds is out of range: above 2^20, or round_count is 0.
//   FailedPrecondition  the lane has no free slot, or its slots are too small for a header.
//   Unavailable         the lane broke.
//   DeadlineExceeded    the deadline of `options` passed before the last reply.
absl::StatusOr<ProbeResult> Probe(RequestLane& lane, Clock& clock, const ProbeOptions& options);

}  // namespace ckv
