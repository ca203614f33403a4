// Sums of findings, and facts without the names of tenants.

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/health/findings.h"

namespace ckv {
namespace {

std::string CountOf(uint64_t count, std::string_view noun) {
  return absl::StrFormat("%d %s%s", count, noun, count == 1 ? "" : "s");
}

}  // namespace

FleetFacts WithoutTenants(FleetFacts facts) {
  CorpusFacts sum;
  for (const CorpusFacts& corpus : facts.corpora) {
    if (corpus.tenant.empty()) continue;
    sum.chunk_count += corpus.chunk_count;
    sum.missing_count += corpus.missing_count;
    sum.missing_copy_count += corpus.missing_copy_count;
  }
  std::erase_if(facts.corpora, [](const CorpusFacts& corpus) { return !corpus.tenant.empty(); });
  if (sum.missing_copy_count > 0) facts.corpora.push_back(std::move(sum));
  if (!facts.directory) return facts;
  UnprovenFacts unproven;
  for (const UnprovenFacts& corpus : facts.directory->unproven) {
    if (corpus.tenant.empty()) continue;
    unproven.chunk_count += corpus.chunk_count;
    unproven.missing_count += corpus.missing_count;
    unproven.conflict |= corpus.conflict;
  }
  const size_t hidden = std::erase_if(facts.directory->unproven, [](const UnprovenFacts& corpus) {
    return !corpus.tenant.empty();
  });
  if (hidden > 0) facts.directory->unproven.push_back(std::move(unproven));
  return facts;
}

bool AnyBroken(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::kBroken; });
}

absl::Status StatusOf(const std::vector<Finding>& findings) {
  const Finding* first = nullptr;
  uint64_t broken_count = 0;
  for (const Finding& finding : findings) {
    if (finding.severity != Severity::kBroken) continue;
    if (first == nullptr) first = &finding;
    ++broken_count;
  }
  if (first == nullptr) return absl::OkStatus();
  const uint64_t warning_count = findings.size() - broken_count;
  return absl::Status(
      StatusOf(first->code),
      absl::StrCat(CountOf(broken_count, "problem"),
                   warning_count == 0 ? "" : ", " + CountOf(warning_count, "warning"),
                   "; the first: ", first->subject, " ", first->what));
}

std::vector<FindingCount> CountByCode(const std::vector<Finding>& findings) {
  std::map<std::pair<FindingCode, Severity>, uint64_t> counts;
  for (const Finding& finding : findings) ++counts[{finding.code, finding.severity}];
  std::vector<FindingCount> all;
  for (const auto& [key, count] : counts) all.push_back({key.first, key.second, count});
  return all;
}

}  // namespace ckv
