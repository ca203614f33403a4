// Requests of a simulation: made from a few numbers, or taken from a trace.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ckv {

struct SimRequest {
  double arrival_s = 0;
  double input_tokens = 0, output_tokens = 0;
  // Blocks of kSimBlockTokens; equal leading ids are equal prefixes. The last may be partly filled.
  std::vector<uint64_t> blocks;
};
// The block of public traces.
inline constexpr uint32_t kSimBlockTokens = 512;

// A kind of requests. NetKV's three kinds are filters on the lengths of one trace (section VI-A).
struct WorkloadProfile {
  std::string_view name;
  double tokens_min = 1, tokens_max = 131072;
  double median_tokens = 4000;   // without a trace: the median if there were no limits
  double share_probability = 0;  // that a prompt begins with a shared prefix
  double slo_s = 0;              // the limit of the time to first token
  double requests_per_s = 0;     // at 100 % load
};

// Numbers for runs without a trace.
struct WorkloadShape {
  double sigma = 1;                 // lengths of prompts are log-normal
  double output_tokens_mean = 350;  // exponentially distributed
  // Shared prefixes: how many there are, and the length of each. Each is equally probable.
  uint32_t prefix_count = 16;
  double prefix_tokens = 4096;
};

// The requests of one run: those that arrive within `duration_s` at `requests_per_s`.
struct WorkloadSpec {
  WorkloadProfile profile;
  WorkloadShape shape;
  double requests_per_s = 1;
  double duration_s = 20;
  double fixed_tokens = 0;  // if above 0, the length of every prompt
  uint64_t seed = 1;
};
inline constexpr size_t kSimRequestsMax = 2'000'000;

// Makes requests whose times are those of a Poisson process with a given count. Their lengths are
// the equal parts of the distribution, in random order, so that seeds differ in order alone.
//   InvalidArgument     a number is not positive, there is no request or more than
//                       kSimRequestsMax, or no length is within the profile's limits.
absl::StatusOr<std::vector<SimRequest>> MakeRequests(const WorkloadSpec& spec);

// One line of a trace. Its blocks are those of the whole prompt.
struct TraceRequest {
  double arrival_s = 0;
  double input_tokens = 0, output_tokens = 0;
  std::vector<uint64_t> blocks;
};
// Takes the requests of the trace that are within the profile's lengths. All times are scaled by
// one factor to the rate, and begin at `from_s` after scaling. Prefixes are shared by the profile's
// probability, or are those of the trace if `own_prefixes`.
//   InvalidArgument     the trace has no request of these lengths, or ends before `from_s` and
//                       `duration_s`.
absl::StatusOr<std::vector<SimRequest>> TakeRequests(const WorkloadSpec& spec,
                                                     const std::vector<TraceRequest>& trace,
                                                     double from_s, bool own_prefixes);

}  // namespace ckv
