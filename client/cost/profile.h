// The measured constants of the predicate (client/cost/predicate.h). None is written by hand.
// They come from probes, live completions, a calibration of this machine, and a profile written by
// `ckvctl calibrate` (client/cost/profile_file.h).

#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "attention/partial.h"
#include "client/cost/compute_curve.h"
#include "client/cost/live_window.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"

namespace ckv {

// The constants of one fabric to one holder, in microseconds and bytes per second.
struct FabricConstants {
  double t_probe_us = 0;
  double bandwidth_bytes_per_s = 0;
  // The bandwidth of fetches. Unlike queries and partials, their rows are not written and merged.
  // If 0, bandwidth_bytes_per_s applies.
  double fetch_bandwidth_bytes_per_s = 0;

  friend bool operator==(const FabricConstants&, const FabricConstants&) = default;
};

// By how much an exchange is longer after the holder's kernel has read many rows. The rows have
// evicted the exchanged bytes from the caches of its core, and threads that waited long slept and
// are woken. A share of the exchange moves at min(BW, 1 / us_per_byte):
//
//     share = 1 - exp(-(bytes of rows / cache)^2)
//     one message   share x (fixed + exchanged bytes x max(0, us_per_byte - 1 / BW)) longer
//
// Caches evict nearly the oldest lines, so the share rises steeply near the cache's size. Measured
// shares were 0 for a seventh of the cache, 0.65 for 1.1 caches and 1 for 4.5. All zeros if not
// measured (deploy/adr/0013-the-decision.md).
struct ColdExchange {
  double fixed_us = 0;     // some 70 over shm and tcp
  double us_per_byte = 0;  // time of a byte that is in no cache, on its whole way
  double cache_bytes = 0;  // a core's second-level cache

  // The share for `read_bytes` of rows, [0, 1]. 0 for a NaN, or if nothing was measured.
  double Share(double read_bytes) const noexcept {
    if (!(cache_bytes > 0) || !(read_bytes > 0)) return 0;
    const double caches = read_bytes / cache_bytes;
    return caches < 6 ? 1 - std::exp(-caches * caches) : 1;
  }
  // The rate of bytes that are in no cache, where others move at `bytes_per_us`.
  double Rate(double bytes_per_us) const noexcept {
    return bytes_per_us * us_per_byte > 1 ? 1 / us_per_byte : bytes_per_us;
  }
  // By how much one message is longer. `exchanged_bytes` in both directions; `bytes_per_us` is BW.
  // Never NaN; a NaN counts as 0.
  double Us(double exchanged_bytes, double read_bytes, double bytes_per_us) const noexcept {
    const double share = Share(read_bytes);
    if (!(share > 0)) return 0;
    const double more_us_per_byte = us_per_byte - (bytes_per_us > 0 ? 1 / bytes_per_us : 0);
    const double moved_us =
        exchanged_bytes > 0 && more_us_per_byte > 0 ? exchanged_bytes * more_us_per_byte : 0;
    return share * ((fixed_us > 0 ? fixed_us : 0) + moved_us);
  }
  friend bool operator==(const ColdExchange&, const ColdExchange&) = default;
};

// One holder's compute time for one geometry, over its whole load W = rows x tokens x requesters:
//
//     T_compute = base + max(u, tokens x gather x f)
//     u         = max(0, W x gather - free) x per_row_token
//
// A few requesters do not fill a GPU (arXiv:2606.01502 section 6.3: flat to 8 of them, then
// linear). `free_row_tokens` is the load that costs nothing; on a CPU it is 0. f is the floor. The
// tokens' rows are read from memory once, for all query rows of all requesters that share the
// kernel. client/cost/compute_curve.h has the formula for a shown share above 0.
struct ComputeConstants {
  double base_us = 0;
  double per_row_token_us = 0;
  double free_row_tokens = 0;
  // The calibrated curve, over rows x requesters query rows. Unless empty, the curve replaces base,
  // per_row_token and floor.
  ComputeCurve curve = {};
  // The ratio of the kernel's present time to its time when the above were measured
  // (client/cost/live_kernel.h).
  LiveFactors live = {};
  // The ratio of the time to attend k selected rows to the time to attend k adjacent rows. If 0,
  // the ratio was not measured and counts as 1.
  double gather_factor = 0;
  MemoryFloor floor = {};  // used with base and per_row_token; all zeros if not measured
};

// The constants of this requester. A profile contains them, or CalibrateHere
// (client/paged/calibrate_here.h) measures all but the last. The cost of an eviction is not
// included, because it depends on what the engine evicts. The caller of Decide passes it
// (DecisionInput::eviction, client/cost/predicate.h).
struct RequesterConstants {
  double merge_per_row_us = 0;           // one partial row of d_v, per part
  double splice_per_token_layer_us = 0;  // rotate and scatter one row
  // The fixed cost of a splice per layer: kernel launches on a GPU, about 100 us in
  // arXiv:2606.01502 section 7. Applies only if rows are rotated.
  double splice_per_layer_us = 0;
  // The same kernel, run here, and its floor: rows x tokens x per_row_token, but at least the time
  // to read the tokens' rows from memory. Unless empty, `attend` replaces both.
  double attend_per_row_token_us = 0;
  MemoryFloor attend_floor = {};
  ComputeCurve attend = {};
  // The time to prefill one token at one layer. If unset, recomputing is not offered. The engine
  // reports it (client/live_prefill.h), or a profile has it (`ckvctl calibrate --prefill-us`).
  std::optional<double> prefill_per_token_layer_us;
};

// Returns the time to attend on this requester: one layer, `rows` query rows over `tokens` tokens.
KernelTime AttendHereTime(const RequesterConstants& here, double rows, double tokens) noexcept;
// As ComputeCurve::Time of several runs, for one layer on this requester.
KernelTime AttendHereTime(const RequesterConstants& here, double rows,
                          std::span<const SharedRun> runs) noexcept;

// Counts the unanswered requests to one holder, over all calls, and tests whether a request had the
// holder's lanes to itself. A request that shares the lanes waits for the requests before it, and
// for its caller, which writes and merges the others. That can take up to 30 times as long as its
// own bytes. Requests to other holders are not counted: a call on a corpus with several holders
// posts to them at once. Thread-safe; all accesses are relaxed, because a lost race spoils only one
// sample.
class BusyPeriod {
 public:
  void Begin(uint32_t count) {
    const uint32_t before = count_.fetch_add(count, std::memory_order_relaxed);
    shared_.store(before > 0 || count > 1, std::memory_order_relaxed);
  }
  void End(uint32_t count) { count_.fetch_sub(count, std::memory_order_relaxed); }
  // Returns how many requests are posted and not answered.
  uint32_t Get() const { return count_.load(std::memory_order_relaxed); }
  // Returns whether the request that ended last was the only one from its start until now.
  bool LastWasAlone() const {
    return count_.load(std::memory_order_relaxed) == 0 && !shared_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<bool> shared_{false};  // the count has been above 1 since it was last 0
};

// The constants of the fabric to one holder, updated by the requests that use it. Empty until the
// first Set, which comes from a probe. Thread-safe; a lost race loses one sample.
class LiveFabric {
 public:
  // The limits of a lane's bandwidth. Below 10 Mb/s a request waits for something else. 400 Gb/s is
  // the fastest port available, and several times what one core copies.
  static constexpr double kBandwidthMin = 1.25e6;
  static constexpr double kBandwidthMax = 50e9;
  static constexpr uint64_t kSmallBytesMax = 4u << 10;
  static constexpr uint64_t kLargeBytesMin = 128u << 10;
  static constexpr uint32_t kWindowCount = BestWindow::kCount;

  // Samples count only if `requests`, which must outlive this, reports that they were alone. If
  // null, all samples count.
  explicit LiveFabric(const BusyPeriod* requests = nullptr) : requests_(requests) {}

  // Sets the constants from a probe. Pass `bandwidth_fixed` for a lane over memory: its bandwidth
  // then stays, and requests update only T_probe. That lane moves nothing itself, because the
  // holder's kernel reads the request in place. The extra time of a large request there is wake-ups
  // and scheduling, not bandwidth.
  void Set(const FabricConstants& constants, bool bandwidth_fixed = false);
  // Returns the present constants, or nothing before the first Set.
  std::optional<FabricConstants> Get() const;

  // Adds a sample: one completed request that has just ended in `requests`. Its `bytes` in both
  // directions took `us`, without the holder's queue and kernel. Small requests update T_probe,
  // large ones the bandwidth. Those in between update the one that they spend more time on. A
  // disturbance (a wake-up, a scheduler pause) only adds time, so the second best of every
  // kWindowCount samples is used. No single sample changes a constant. A step is at most a factor
  // of 2, so a real change is followed in about 50 requests.
  //
  // Returns true if this sample makes the constants doubted. Then DoubtCount::kCount requests in a
  // row took less than half of the predicted time, so the probe was disturbed. Requests that take
  // longer never cause doubt: ends that sleep between calls take longer than a probe, and the steps
  // follow that.
  bool Observe(uint64_t bytes, double us);
  // Returns whether the constants became doubted since the last Set.
  bool doubted() const { return doubted_.load(std::memory_order_relaxed); }

 private:
  void StepProbe(double known_us, double us);
  void StepBandwidth(double known_bytes_per_s, double us_per_byte);

  const BusyPeriod* const requests_;
  std::atomic<double> t_probe_us_{0};
  std::atomic<double> bandwidth_bytes_per_s_{0};  // 0 before the first Set
  std::atomic<bool> bandwidth_fixed_{false};
  std::atomic<bool> doubted_{false};
  DoubtCount doubts_;
  BestWindow small_;  // us
  BestWindow large_;  // us per byte
};

// The bandwidth at which rows of one holder arrived here, fetched or mapped. It includes the effect
// of all other traffic, and of memory that is touched for the first time. Thread-safe; a lost race
// loses one sample.
class LiveBandwidth {
 public:
  // Smaller transfers are ignored: they end before the transfer reaches its full speed.
  static constexpr uint64_t kBytesMin = 256u << 10;

  void Observe(uint64_t bytes, double us) {
    if (bytes < kBytesMin || !(us > 0)) return;
    const double now = us / double(bytes), known = us_per_byte_.load(std::memory_order_relaxed);
    // Each sample weighs a quarter, so about the last four count. Times are averaged, because times
    // add up over several fetches.
    us_per_byte_.store(known > 0 ? known + (now - known) / 4 : now, std::memory_order_relaxed);
  }
  // Returns bytes per second; 0 before the first sample.
  double Get() const {
    const double us_per_byte = us_per_byte_.load(std::memory_order_relaxed);
    return us_per_byte > 0 ? 1e6 / us_per_byte : 0;
  }

 private:
  std::atomic<double> us_per_byte_{0};
};

// Returns the bytes per second that one core copies between buffers larger than its own caches.
// That is the bandwidth of a lane over memory, whose payload moves as cores write and read it. A
// probe touches no payload and cannot measure it.
double CopyBandwidth(Clock& clock);

}  // namespace ckv
