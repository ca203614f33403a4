// Plans holders of one kind for a corpus and a load: memory, use of kernels and links, latency
// with its terms, and cost.
//
// The time of a call and the choice of route, fetch or local are the product's own: Decide of
// client/cost/predicate.h. A plan adds how often
// calls come, and how long they wait for each other (client/sizing/queue_wait.h):
//
//   calls       agents x steps/s x layers x (1 - near_share): a round for each layer of a step
//   at a holder calls x h / holders that are alive; h holders take part in a call
//   service     T_compute(M_q, tokens / h), and the part of the transfer that the holder copies
//               itself; holders that share a processor are one station
//   latency     T_route of Decide + the longest of h waits, each for the kernel and four links
//
// A route is the only primitive that loads holders' kernels. A fetch loads links, once a session
// of `session_steps` steps (for each layer of each step under selection), and local loads nothing.
//
// A step is `layers` rounds one after another. Its mean and variance are the sums of theirs, and
// its quantiles are those of a normal distribution.
//
// Not counted: batches, in which a holder shares reads of rows between requests; the processors of
// requesters; headers and checksums (0.1 % of a corpus). The first makes real waits shorter.
//
// Pure functions. Units are microseconds, bytes and seconds; each name has its own.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cost/cost_model.h"
#include "client/cost/predicate.h"
#include "client/cost/profile.h"
#include "proto/geometry.h"

namespace ckv {

inline constexpr uint32_t kPlanHoldersMax = 4096;
inline constexpr uint32_t kPlanReplicasMax = 16;
inline constexpr uint32_t kPlanCallHoldersMax = 256;
inline constexpr uint32_t kPlanMachinesMax = 64;

struct PlanCorpus {
  Geometry geometry;
  double tokens = 0;
  uint32_t replicas = 1;  // copies of each chunk, in as many failure domains
  uint32_t domains = 1;   // over which holders are spread evenly
  // Domains that may fail while the goal is still met. Copies are not made again meanwhile.
  uint32_t domains_lost = 0;
};

struct PlanLoad {
  // Callers, each with one call at a time. An engine that decodes a batch is one agent, whose calls
  // carry the query rows of the whole batch.
  uint32_t agents = 1;
  double steps_per_s = 0;       // decode steps of each agent
  uint32_t query_rows = 0;      // M_q of a call: tokens x heads
  uint64_t context_tokens = 0;  // tokens of the corpus that a call is about, mean
  double context_cv = 0;        // their deviation divided by the mean; lengthens waits only
  uint64_t selected = 0;        // rows that a query attends of them; 0 if all
  uint32_t session_steps = 1;   // steps of an agent on the same tokens
  uint32_t sharing = 1;         // agents of a requester that attend the same tokens
  double near_share = 0;        // share of calls whose rows the requester already has, [0, 1]
  // Holders that have rows of one call. More take part if the tokens fit on no fewer.
  uint32_t holders_per_call = 1;
};

// Limits on the added time: that of a call, or of all calls of a step, from its begin to the merged
// result. Calls to near rows are not counted.
struct PlanGoal {
  bool per_step = false;  // or per layer
  std::optional<double> p50_us, p99_us;
  double utilisation_max = 1;  // the most of kernels and links, (0, 1]
};

// A kind of machine on offer as holder.
struct PlanMachine {
  std::string name;
  uint32_t count_max = 1;
  double memory_bytes = 0;           // for rows
  std::optional<double> disk_bytes;  // if set, each holder also keeps its rows there
  double network_bytes_per_s = 0;    // each way
  double price_per_hour = 0;         // one holder's, in any currency
  // Processors of the host for each of those that the holders' kernels need, (0, 1]. Below 1,
  // holders of one host take turns: 0.5 if two with a thread each share one processor.
  double processors_per_holder = 1;
  Candidate lane;  // its constants: fabric, shares, compute with a curve
};

struct PlanRequesters {
  uint32_t count = 1;
  double network_bytes_per_s = 0;  // each way
  uint64_t cache_tokens = 0;       // room in each local row cache; if 0, nothing is fetched
  RequesterConstants here;
};

struct CorpusPlanInput {
  PlanCorpus corpus;
  PlanLoad load;
  PlanGoal goal;
  PlanRequesters requesters;
  std::optional<double> network_bytes_per_s;  // between all requesters and all holders, each way
  std::vector<PlanMachine> machines;
  std::optional<Primitive> policy;  // if unset, the predicate chooses
};

// Checks values against each other and against their ranges.
//   InvalidArgument     the message begins with the field: "corpus.replicas: ...".
absl::Status ValidatePlanInput(const CorpusPlanInput& input);

enum class PlanLimit : uint8_t {
  kDomains = 0,    // a holder in each domain, and one alive
  kMemory,         // a holder's
  kDisk,           // a holder's
  kKernel,         // a holder's time, where calls are computed
  kHolderNetwork,  // the busier direction of a holder's link
  kRequesterLink,  // the same of a requester
  kNetwork,        // the same of all together
  kCache,          // a requester's, for rows that it fetches
  kP50,
  kP99,
};
inline constexpr size_t kPlanLimitCount = 10;
const char* NameOf(PlanLimit limit);  // "kernels of holders"

// The use of one limit. Units are those of the limit: bytes, utilisation, us, tokens, holders.
struct LimitUse {
  double used = 0;
  double allowed = 0;  // 0 if there is no limit
  // Returns used / allowed, which is above 1 if the limit is not kept; 0 without a limit.
  double Ratio() const { return allowed > 0 ? used / allowed : 0; }
};

// Microseconds of one call of one layer. For fetch and local, `once` is not part of the others.
struct PlanTerms {
  double probe_us = 0, transfer_us = 0, compute_us = 0, merge_us = 0;
  double wait_us = 0;  // mean, for the kernel and the links
  double once_us = 0;  // at the begin of a session: transfer, splice, prefill, evictions
};

struct HolderPlan {
  uint32_t machine = 0;  // index in CorpusPlanInput::machines
  uint32_t holders = 0, holders_alive = 0;
  uint32_t holders_per_call = 0;  // h
  double shards = 0;              // holders that have one copy of the corpus together
  double memory_bytes = 0;        // rows on the fullest holder
  double calls_per_s = 0;         // to each holder that is alive
  double rows_per_s = 0;          // query rows among them
  double rows_per_s_max = 0;      // as many as its kernel can compute
  Primitive primitive = Primitive::kRoute;
  Decision decision;                       // over a session, without waits
  std::optional<Primitive> loaded_choice;  // the predicate's choice with the mean wait
  PlanTerms terms;
  double layer_us_mean = 0, layer_us_p50 = 0, layer_us_p99 = 0;
  double step_us_p50 = 0, step_us_p99 = 0;
  double price_per_hour = 0;
  double price_per_million_steps = 0;
  std::array<LimitUse, kPlanLimitCount> limits;

  const LimitUse& use(PlanLimit limit) const { return limits[static_cast<size_t>(limit)]; }
  bool meets() const { return use(Tightest()).Ratio() <= 1; }
  // Returns the limit with the largest ratio. If several are not kept, it is one that makes the
  // others worse: domains before space, space before use, and use before times.
  PlanLimit Tightest() const;
};

// Returns what `holders` machines of one kind do. The input must be valid, `machine` an index of
// its machines, and `holders` at least 1. Takes some microseconds.
HolderPlan PlanHolders(const CorpusPlanInput& input, uint32_t machine, uint32_t holders);

// Returns the share of one copy of the corpus that the fullest holder has. Infinite if there are
// fewer holders than domains need.
double FullestShare(const PlanCorpus& corpus, uint32_t holders);

}  // namespace ckv
