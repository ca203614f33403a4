#include "client/tools/ctl/corpus/policy_options.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/time_span.h"
#include "proto/base/byte_size.h"

namespace ckv::ctl {

void AddPolicyOptions(CLI::App& verb, PolicyOptions& options) {
  verb.add_option("--ttl", options.ttl,
                  "Time from the last change of its chunks until the corpus is dropped (0: never)")
      ->check(TimeSpan())
      ->type_name("TIME");
  verb.add_option("--quota", options.quota,
                  "Most bytes of rows, one copy of each chunk, like 64GiB (0: no limit)")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return std::string(ParseByteSize(text).status().message());
          },
          ""))
      ->type_name("BYTES");
  verb.add_option("--keep-versions", options.kept_version_count,
                  "Keep so many earlier versions, for ckvctl corpus rollback")
      ->check(InRange(0u, kKeptVersionCountMax));
}

CorpusPolicy PolicyFrom(const PolicyOptions& options) {
  CorpusPolicy policy;
  if (options.ttl) {
    const auto ttl = std::chrono::ceil<std::chrono::milliseconds>(TimeSpanOf(*options.ttl));
    policy.ttl_ms = static_cast<uint64_t>(ttl.count());
  }
  if (options.quota) policy.quota_bytes = ParseByteSize(*options.quota).value_or(0);
  policy.kept_version_count = options.kept_version_count;
  return policy;
}

std::string PolicyText(const CorpusPolicy& policy, uint64_t now_ms) {
  std::vector<std::string> parts;
  if (policy.expires_at_ms != 0) {
    const uint64_t left_ms = policy.expires_at_ms - std::min(policy.expires_at_ms, now_ms);
    parts.push_back("expires in " + FormatAge(std::chrono::milliseconds(left_ms)));
  }
  if (policy.quota_bytes.value_or(0) != 0)
    parts.push_back("quota " + FormatBytes(*policy.quota_bytes));
  if (policy.kept_version_count.value_or(0) != 0)
    parts.push_back("keeps " + FormatCount(*policy.kept_version_count, "earlier version"));
  return parts.empty() ? "-" : absl::StrJoin(parts, ", ");
}

Json PolicyJson(const CorpusPolicy& policy) {
  return {{"ttl_ms", policy.ttl_ms.value_or(0)},
          {"expires_at_ms", policy.expires_at_ms},
          {"quota_bytes", policy.quota_bytes.value_or(0)},
          {"kept_version_count", policy.kept_version_count.value_or(0)}};
}

}  // namespace ckv::ctl
