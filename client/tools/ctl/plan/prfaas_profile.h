// The file that describes a system to ckvctl plan prfaas.
//
//   lengths:                        # of uncached input; one of these three
//     log_normal: {mu: 9.90, sigma: 1.00, tokens_min: 128, tokens_max: 128000}
//     histogram: [{from: 0, to: 1000, weight: 5}, {from: 1000, to: 32000, weight: 3}]
//     trace: requests.jsonl         # objects with input_length, one a line
//   output_tokens: 1024
//   kv_cache: [{tokens: 1000, MiB: 190.8}, {tokens: 32000, MiB: 701.3}]
//   prfaas:
//     instances: 4
//     egress_Gbps: 100
//     prefill: [{tokens: 1000, s: 0.44}, {tokens: 32000, s: 1.84}]
//   pd:
//     instances: 8                  # for prefill or decode
//     prefill: [{tokens: 1000, s: 0.95}, {tokens: 32000, s: 4.95}]
//     decode: {batch_max: 20, step_ms: 25}
//   homogeneous_instances: 12       # of the PD kind, to compare with; may be left out
//
// A JSON file of the same form is a YAML file, too. A trace is looked for beside the profile.
// Unknown keys are refused, because a mistyped one would otherwise be silently ignored.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/sizing/prfaas_model.h"
#include "client/tools/ctl/plan/profile_nodes.h"

namespace ckv::ctl {

struct PrfaasProfile {
  PrfaasSystem system;
  uint32_t homogeneous_instances = 0;  // if 0, none is compared
};

inline constexpr size_t kTraceBytesMax = size_t{256} << 20;

// Parses a profile. `path` begins each error, and its folder is that of a trace.
//   InvalidArgument     "FILE:LINE: KEY: what is wrong".
//   NotFound            there is no trace of that name.
absl::StatusOr<PrfaasProfile> ParsePrfaasProfile(const std::string& path, const std::string& text);

// Reads and parses a profile.
//   NotFound            there is no file of that name.
//   InvalidArgument     it cannot be read, is larger than kPlanFileBytesMax, or as above.
absl::StatusOr<PrfaasProfile> ReadPrfaasProfile(const std::string& path);

// The system of the source's case study (section 4): its tables 5 and 6 as a profile.
extern const char* const kPrfaasPaperProfile;

// Reads the lengths of a trace: the field input_length of one JSON object a line.
//   InvalidArgument     "FILE:LINE: what is wrong".
//   NotFound            there is no file of that name.
absl::StatusOr<LengthDistribution> ReadLengthTrace(const std::string& path);

}  // namespace ckv::ctl
