// The throughput of a system that sends long prefills to another cluster (PrfaaS), and the split
// that makes it largest.
//
// Source: Qin et al., "Prefill-as-a-Service: KVCache of Next-Generation Models Could Go
// Cross-Datacenter", equations 1 to 8. Requests whose uncached input is longer than a threshold t
// are prefilled by PrfaaS instances. Their KV cache crosses a link to a PD cluster, which decodes.
// The others are prefilled in the PD cluster.
//
//   Theta_prfaas = min(N_prfaas / T_prefill(l_long), B_out / S_kv(l_long))           (3)
//   Theta_pd_p   = N_p / T_prefill(l_short)                                           (4)
//   Theta_pd_d   = N_d * BS_max / (T_decode * L_out)                                  (5)
//   Lambda_max   = min(Theta_prfaas / p, Theta_pd_p / (1 - p), Theta_pd_d)            (6)
//
// p is the share of requests above t; l_long and l_short are mean lengths above and up to t. The
// model has no queues: a time to first token is the time of a prefill.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sizing/length_curve.h"
#include "client/sizing/length_distribution.h"

namespace ckv {

// Equation 1: bytes per second of KV cache that one prefill instance makes.
double KvBytesPerSecond(const LengthCurve& kv_bytes, const LengthCurve& prefill_s, double tokens);
// Equation 2: bytes per second that leave a prefill cluster which never waits. `instances` is the
// number of its GPUs divided by those of an instance.
double EgressNeeded(double instances, const LengthCurve& kv_bytes, const LengthCurve& prefill_s,
                    double mean_tokens);

struct PrfaasSystem {
  LengthDistribution lengths;    // tokens of uncached input
  LengthCurve kv_bytes;          // bytes of one request
  LengthCurve prfaas_prefill_s;  // seconds, on one PrfaaS instance
  LengthCurve pd_prefill_s;      // seconds, on one PD instance
  uint32_t prfaas_instances = 0;
  uint32_t pd_instances = 0;  // for prefill or decode
  double egress_bytes_per_s = 0;
  double decode_batch_max = 0;  // requests that an instance decodes at a time
  double decode_step_s = 0;     // per token
  double output_tokens = 0;     // mean, of a request
};

inline constexpr uint32_t kSizingInstancesMax = 1 << 16;

// Checks the counts and rates, and that the curves reach the longest prompt.
//   InvalidArgument     the message begins with the name of the field.
absl::Status ValidateSystem(const PrfaasSystem& system);

struct PrfaasSplit {
  double threshold = 0;  // tokens; longer inputs are offloaded
  uint32_t pd_prefill = 0, pd_decode = 0;
};

// The stage that limits a system.
enum class PrfaasLimit : uint8_t { kPrfaasCompute, kEgress, kPdPrefill, kDecode };
const char* NameOf(PrfaasLimit limit);

struct PrfaasThroughput {
  PrfaasSplit split;
  double share_offloaded = 0;                // p
  double long_tokens = 0, short_tokens = 0;  // l_long and l_short
  // Requests per second of each stage; 0 for a stage without an instance.
  double prfaas = 0, pd_prefill = 0, pd_decode = 0;
  double requests_per_s = 0;  // Lambda_max
  PrfaasLimit limit = PrfaasLimit::kDecode;
  double egress_bytes_per_s = 0;  // at that rate
  // Seconds of prefill, without any queue: the mean, and that which 90 % of the requests have.
  double mean_prefill_s = 0, p90_prefill_s = 0;
};

// Returns the throughput of a split. Offloads nothing if there are no PrfaaS instances, and
// everything if there is no instance for prefill in the PD cluster. If a request then has no place,
// the rate is 0.
PrfaasThroughput ThroughputOf(const PrfaasSystem& system, const PrfaasSplit& split);

// Searches thresholds and splits of the PD cluster for the largest throughput (equations 7 and 8
// hold there). Among equal ones it takes the fewest prefill instances, then the lowest threshold.
// Thresholds are kThresholdCount lengths of the distribution, each the same factor above the one
// before, and kFinerCount around the best of them. Those are 0.17 % apart for 128 to 131072 tokens.
// The system must be valid.
inline constexpr uint32_t kThresholdCount = 512, kFinerCount = 16;
PrfaasThroughput BestSplit(const PrfaasSystem& system);
// The same for a PD cluster whose split is given. `pd_prefill` is at most its instances.
PrfaasThroughput BestThreshold(const PrfaasSystem& system, uint32_t pd_prefill);

// The systems that the source compares with.
// All instances are of the PD kind, and none is offloaded to.
PrfaasThroughput BestHomogeneous(const PrfaasSystem& system, uint32_t instances);
// Every prefill is offloaded, and the PD cluster decodes.
PrfaasThroughput NaiveHeterogeneous(const PrfaasSystem& system);

// The effect of one change on the best throughput.
struct Sensitivity {
  std::string change;  // "egress +10 %", "one PrfaaS instance more"
  PrfaasThroughput best;
  double gain = 0;  // requests_per_s relative to the unchanged system, minus 1
};
std::vector<Sensitivity> Sensitivities(const PrfaasSystem& system);

}  // namespace ckv
