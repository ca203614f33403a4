// Decides where a prefill runs, and how a PD cluster is divided, as load and link change.
//
// Source: Qin et al., "Prefill-as-a-Service", section 3.4.3. Two time scales:
//
//   short   the threshold rises while the link or the queue of the PrfaaS cluster is too full, and
//           returns to the best one after that. Each request is routed by its uncached length
//   long    the best threshold and split are searched again (prfaas_model.h), with the lengths that
//           were seen. An instance of the PD cluster changes its role only for a gain
//
// A pure class: its caller passes the time, what the link carried and how long the queues are, and
// carries out what it returns.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/sizing/prfaas_model.h"
#include "proto/base/clock.h"

namespace ckv {

enum class PrefillCluster : uint8_t { kPrfaas, kPd };

struct PrefillRequest {
  double total_tokens = 0;                                // the input, cached or not
  double cached_prfaas_tokens = 0, cached_pd_tokens = 0;  // prefixes that each cluster has
};

struct PrefillRoute {
  PrefillCluster cluster = PrefillCluster::kPd;
  double uncached_tokens = 0;  // tokens that must be computed there
  // The other cluster has a longer prefix, which is brought over the link first.
  bool moves_cache = false;
};

struct PrfaasSchedulerOptions {
  PrfaasSystem system;  // its lengths count until others are seen
  // The threshold rises while more than `egress_high` of the link is used, or the PrfaaS cluster
  // has more than `queue_high` requests an instance waiting. It returns below `egress_low`. Between
  // them it stays. Up to `egress_low`, bandwidth counts as abundant.
  double egress_high = 0.9, egress_low = 0.7;
  double queue_high = 4;
  // One step up, and the part of the way back to the best threshold in a step down.
  double step_up = 1.15, step_down = 0.25;
  Duration short_period = std::chrono::seconds(1);
  Duration long_period = std::chrono::minutes(5);
  // An instance changes its role only for at least this gain: it serves no one meanwhile.
  double split_gain_min = 0.03;
  // Fewer requests say too little of their lengths.
  size_t sample_min = 200;
};

// Not thread-safe.
class PrfaasScheduler {
 public:
  // The lengths of the last so many requests are kept: 0.5 MB.
  static constexpr size_t kSampleMax = 1 << 16;

  //   InvalidArgument     the system is not valid (ValidateSystem), or an option is outside its
  //                       limits; names it.
  static absl::StatusOr<PrfaasScheduler> Create(const PrfaasSchedulerOptions& options, Instant now);

  // Routes a request. If bandwidth is scarce, a cluster's own prefix counts. If it is abundant, the
  // longer of both counts, and is moved to where the request is prefilled.
  PrefillRoute RoutePrefill(const PrefillRequest& request);

  struct Load {
    double egress_bytes = 0;    // that left the PrfaaS cluster since the last Tick
    double prfaas_waiting = 0;  // requests in its queue
  };
  // Call it at least once per short_period. Returns whether the split changed: see `split`.
  bool Tick(const Load& load, Instant now);

  // The capacity changed: instances were lost, or the link is another. Searches again at once.
  //   InvalidArgument     as Create; nothing changes.
  absl::Status SetSystem(const PrfaasSystem& system);

  double threshold() const { return threshold_; }
  const PrfaasThroughput& best() const { return best_; }
  PrfaasSplit split() const {
    return {threshold_, pd_prefill_, options_.system.pd_instances - pd_prefill_};
  }
  double egress_share() const { return egress_share_; }  // share of the link, last period
  bool is_scarce() const { return egress_share_ > options_.egress_low; }

 private:
  PrfaasScheduler(const PrfaasSchedulerOptions& options, Instant now);
  void AdaptThreshold(const Load& load, Duration since);
  bool Replan();

  PrfaasSchedulerOptions options_;
  PrfaasThroughput best_;
  double threshold_ = 0;
  uint32_t pd_prefill_ = 0;
  double egress_share_ = 0;
  double egress_bytes_ = 0;  // since short_at_
  Instant short_at_, long_at_;
  std::vector<double> seen_;  // uncached lengths, a ring once it is full
  size_t next_seen_ = 0;
};

}  // namespace ckv
