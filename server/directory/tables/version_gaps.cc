#include "server/directory/tables/version_gaps.h"

#include <algorithm>

namespace ckv {

void VersionGaps::Add(VersionGap gap) {
  if (gap.until <= gap.after) return;
  if (!gaps_.empty() && gap.after <= gaps_.back().until) {
    gaps_.back().until = std::max(gaps_.back().until, gap.until);
    return;
  }
  gaps_.push_back(gap);
  if (gaps_.size() > kCountMax) gaps_.erase(gaps_.begin());
}

bool VersionGaps::Has(uint64_t version) const {
  const auto gap =
      std::lower_bound(gaps_.begin(), gaps_.end(), version,
                       [](const VersionGap& one, uint64_t number) { return one.until < number; });
  return gap != gaps_.end() && gap->after < version;
}

}  // namespace ckv
