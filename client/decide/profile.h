// The measured constants that the predicate computes with. None is typed in: probes, live
// completions, a calibration of this machine and a profile that `ckvctl calibrate` measured
// (client/profile_file.h) fill them.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "attention/partial.h"
#include "client/compute_curve.h"
#include "client/live_window.h"
#include "proto/clock.h"
#include "proto/geometry.h"

namespace ckv {

// Of one fabric to one holder. Microseconds and bytes per second, as in design 5.
struct FabricConstants {
  double t_probe_us = 0;
  double bandwidth_bytes_per_s = 0;
  // Of fetches, whose rows are not written and merged as queries and partials are; 0: the same.
  double pull_bandwidth_bytes_per_s = 0;

  friend bool operator==(const FabricConstants&, const FabricConstants&) = default;
};

// Of one holder's compute for one geometry, over its whole load W = rows x tokens x requesters:
//   T_compute = base + max(0, W x gather - free) x per_row_token
// A GPU is not filled by a few requesters (arXiv:2606.01502 section 6.3: flat to 8 of them, then
// linear): `free_row_tokens` is what it takes for nothing. A CPU's is 0.
struct ComputeConstants {
  double base_us = 0;
  double per_row_token_us = 0;
  double free_row_tokens = 0;
  // Where it was calibrated: instead of base and per_row_token, over rows x requesters query rows.
  ComputeCurve curve = {};
  // Times all of the above: what the kernel takes now over what it took when they were measured
  // (client/live_compute.h). Not above 0: 1.
  double live_factor = 1;
  // Attending k selected rows over attending k rows that lie together; 0: not measured, taken as 1.
  double gather_factor = 0;
};

// Of this requester: a profile's, or measured by CalibrateHere, but for the last. What an eviction
// costs is not among them, for only the engine knows what it throws out: the caller of Decide says
// it (DecisionInput::eviction, client/predicate.h).
struct RequesterConstants {
  double merge_per_row_us = 0;           // one partial row of d_v, per part
  double splice_per_token_layer_us = 0;  // rotate and scatter one row
  // What a splice of any length takes, a layer: launching kernels on a GPU, about 100 us in
  // arXiv:2606.01502 section 7. Paid only where something is rotated.
  double splice_per_layer_us = 0;
  double attend_per_row_token_us = 0;  // the same kernel, here
  ComputeCurve attend = {};            // where it was calibrated, instead
  // Prefill of one token at one layer; absent where no engine is attached, so that recomputing is
  // not offered. A profile gives it: `ckvctl calibrate` times its engine.
  std::optional<double> prefill_per_token_layer_us;
};

// Whether a request had its requester to itself. One of several under way waits for its turn in the
// lane and for its caller, who meanwhile writes and merges the others': up to 30 times what its own
// bytes take. Thread-safe; relaxed throughout, for a lost race mistakes one sample.
class BusyPeriod {
 public:
  void Begin(uint32_t count) {
    const uint32_t before = count_.fetch_add(count, std::memory_order_relaxed);
    shared_.store(before > 0 || count > 1, std::memory_order_relaxed);
  }
  void End(uint32_t count) { count_.fetch_sub(count, std::memory_order_relaxed); }
  // Of the request that ended last: nothing else was under way while it was, nor is now.
  bool LastWasAlone() const {
    return count_.load(std::memory_order_relaxed) == 0 && !shared_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<bool> shared_{false};  // since the count was last 0, it was more than 1
};

// The constants of the fabric to one holder, kept true by the requests that use it. Empty until the
// first Set, which comes from a probe. Thread-safe; a lost race loses one sample.
class LiveFabric {
 public:
  // What a lane can be. 10 Mb/s: whoever is slower waits for something else. 400 Gb/s: the fastest
  // port that there is, and several times what one core copies.
  static constexpr double kBandwidthMin = 1.25e6;
  static constexpr double kBandwidthMax = 50e9;
  static constexpr uint64_t kSmallBytesMax = 4u << 10;
  static constexpr uint64_t kLargeBytesMin = 128u << 10;
  static constexpr uint32_t kWindowCount = BestWindow::kCount;

  // Samples count only where `requests` says that they were alone; null: all do. Must outlive this.
  explicit LiveFabric(const BusyPeriod* requests = nullptr) : requests_(requests) {}

  // What a probe told. A lane over memory moves nothing by itself (the holder's kernel reads the
  // request where it lies), so what a large request takes there beyond a small one is wake-ups and
  // turns of the scheduler: its bandwidth is `fixed`, and requests tell T_probe only.
  void Set(const FabricConstants& constants, bool bandwidth_fixed = false);
  std::optional<FabricConstants> Get() const;

  // One completed request, just ended in `requests`: `bytes` in both directions took `us`, the
  // holder's queue and kernel taken off. Small ones tell T_probe, large ones the bandwidth, those
  // between tell nothing. What disturbs a request (a wake-up, a scheduler pause) only ever adds to
  // it, so of every kWindowCount samples the second best is taken: no single one moves a constant.
  // A step is a factor 2 at most, so a real change is followed in some 50 requests.
  void Observe(uint64_t bytes, double us);

 private:
  const BusyPeriod* const requests_;
  std::atomic<double> t_probe_us_{0};
  std::atomic<double> bandwidth_bytes_per_s_{0};  // 0: nothing known
  std::atomic<bool> bandwidth_fixed_{false};
  BestWindow small_;  // us
  BestWindow large_;  // us a byte
};

// Bytes per second that one core copies between buffers that its own caches do not hold: the
// bandwidth of a lane over memory, whose payload moves as cores write and read it. A probe, which
// touches no payload, does not see that.
double CopyBandwidth(Clock& clock);

// Times the merge, the kernel and the splice here, on a few rows of the geometry: a few
// milliseconds, once a geometry. Takes the fastest of several runs, the one least disturbed. The
// splice is Splice (client/splice.h) from warm rows, as a transfer leaves them, into blocks of a
// paged cache that lie apart and were not just written; two lengths tell what a layer and what a
// row takes. Both are 0 for a geometry without a band, whose rows a transfer puts in place.
RequesterConstants CalibrateHere(const Geometry& geometry, Clock& clock);

}  // namespace ckv
