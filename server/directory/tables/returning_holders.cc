#include "server/directory/tables/returning_holders.h"

#include <iterator>

#include "absl/strings/str_format.h"

namespace ckv {

void ReturningHolders::Start(const PlacedCorpora& corpora, Instant until) {
  for (const auto& [holder, placed] : corpora.by_holder()) missing_.insert(holder);
  until_ = until;
}

std::vector<HolderId> ReturningHolders::List(const PlacedCorpora& corpora) {
  for (auto it = missing_.begin(); it != missing_.end();)
    it = corpora.by_holder().contains(*it) ? std::next(it) : missing_.erase(it);
  absl::btree_set<HolderId> all = missing_;
  all.insert(reporting_.begin(), reporting_.end());
  return {all.begin(), all.end()};
}

absl::Status ReturningHolders::Check(Instant now) const {
  const Duration left = until_ - now;
  if (missing_.empty() || left <= Duration(0)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "the directory was just started, and holder %s is not back yet, the first of %d: all may be "
      "back in %d ms",
      missing_.begin()->name, missing_.size(), left / std::chrono::milliseconds(1)));
}

}  // namespace ckv
