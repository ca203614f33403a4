// Ids of blocks: a shared prefix has ids of its number and the block's; any other block has an id
// of its own. The ids of a trace get a mark, so that they never meet these.

#include "client/simulate/workload.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "client/simulate/random.h"
#include "client/sizing/length_distribution.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr uint64_t kOwnBlock = uint64_t{1} << 62, kTraceBlock = uint64_t{1} << 63;

absl::Status CheckSpec(const WorkloadSpec& spec) {
  const double count = spec.requests_per_s * spec.duration_s;
  if (!(count >= 1 && count <= static_cast<double>(kSimRequestsMax))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%g requests/s for %g s are %g requests, must be 1 to %d",
                        spec.requests_per_s, spec.duration_s, count, kSimRequestsMax));
  }
  return absl::OkStatus();
}

// Gives requests their blocks: a shared prefix with the profile's probability, else none.
class PrefixSharer {
 public:
  explicit PrefixSharer(const WorkloadSpec& spec)
      : spec_(spec), random_(SimRandom::Mix(spec.seed) ^ 1) {}

  void Fill(SimRequest& request) {
    const auto count = static_cast<size_t>(std::ceil(request.input_tokens / kSimBlockTokens));
    const bool shares = random_.Share() < spec_.profile.share_probability;
    const uint64_t prefix = random_.Below(std::max(spec_.shape.prefix_count, 1u));
    // The last block is the request's own: a prompt never is a prefix alone.
    const size_t shared =
        shares
            ? std::min(count - 1, static_cast<size_t>(spec_.shape.prefix_tokens) / kSimBlockTokens)
            : 0;
    request.blocks.resize(count);
    for (size_t i = 0; i < count; ++i)
      request.blocks[i] = i < shared ? (prefix << 24) + i : kOwnBlock + next_++;
  }

 private:
  const WorkloadSpec& spec_;
  SimRandom random_;
  uint64_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<SimRequest>> MakeRequests(const WorkloadSpec& spec) {
  CKV_RETURN_IF_ERROR(CheckSpec(spec));
  CKV_ASSIGN_OR_RETURN(const LengthDistribution lengths,
                       LengthDistribution::Create(
                           LengthDistribution::LogNormal{.mu = std::log(spec.profile.median_tokens),
                                                         .sigma = spec.shape.sigma,
                                                         .tokens_min = spec.profile.tokens_min,
                                                         .tokens_max = spec.profile.tokens_max}));
  SimRandom random(spec.seed);
  const auto count = static_cast<size_t>(std::llround(spec.requests_per_s * spec.duration_s));
  std::vector<double> times(count), tokens(count);
  for (size_t i = 0; i < count; ++i) {
    times[i] = random.Share() * spec.duration_s;
    tokens[i] = spec.fixed_tokens > 0
                    ? spec.fixed_tokens
                    : lengths.Quantile((static_cast<double>(i) + 0.5) / static_cast<double>(count));
  }
  std::sort(times.begin(), times.end());
  for (size_t i = count; i > 1; --i)
    std::swap(tokens[i - 1], tokens[random.Below(static_cast<uint32_t>(i))]);
  std::vector<SimRequest> requests(count);
  PrefixSharer sharer(spec);
  for (size_t i = 0; i < count; ++i) {
    requests[i].arrival_s = times[i];
    requests[i].input_tokens = std::max(1.0, std::round(tokens[i]));
    requests[i].output_tokens = std::ceil(random.Exponential(spec.shape.output_tokens_mean) + 1e-9);
    sharer.Fill(requests[i]);
  }
  return requests;
}

absl::StatusOr<std::vector<SimRequest>> TakeRequests(const WorkloadSpec& spec,
                                                     const std::vector<TraceRequest>& trace,
                                                     double from_s, bool own_prefixes) {
  CKV_RETURN_IF_ERROR(CheckSpec(spec));
  const auto within = [&](const TraceRequest& request) {
    return request.input_tokens >= spec.profile.tokens_min &&
           request.input_tokens <= spec.profile.tokens_max;
  };
  const auto kept = static_cast<double>(std::count_if(trace.begin(), trace.end(), within));
  const double span_s = trace.empty() ? 0 : trace.back().arrival_s - trace.front().arrival_s;
  const double scale = span_s > 0 ? kept / spec.requests_per_s / span_s : 0;
  if (span_s * scale < from_s + spec.duration_s) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%g requests of %g to %g tokens last %g s at %g requests/s; the run takes %g s from %g s",
        kept, spec.profile.tokens_min, spec.profile.tokens_max, span_s * scale, spec.requests_per_s,
        spec.duration_s, from_s));
  }
  std::vector<SimRequest> requests;
  PrefixSharer sharer(spec);
  for (const TraceRequest& one : trace) {
    const double at_s = (one.arrival_s - trace.front().arrival_s) * scale - from_s;
    if (!within(one) || at_s < 0) continue;
    if (at_s >= spec.duration_s) break;
    SimRequest& request = requests.emplace_back();
    request.arrival_s = at_s;
    request.input_tokens = spec.fixed_tokens > 0 ? spec.fixed_tokens : one.input_tokens;
    request.output_tokens = one.output_tokens;
    if (!own_prefixes || spec.fixed_tokens > 0) {
      sharer.Fill(request);
    } else {
      request.blocks = one.blocks;
      for (uint64_t& id : request.blocks) id |= kTraceBlock;
    }
  }
  if (requests.empty()) return absl::InvalidArgumentError("no request arrives during the run");
  return requests;
}

}  // namespace ckv
