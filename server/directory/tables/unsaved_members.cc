#include "server/directory/tables/unsaved_members.h"

#include <algorithm>
#include <utility>

namespace ckv {

void UnsavedMembers::Note(DirectoryChange change) {
  const HolderId id = change.member.id;
  unsaved_[id] = {.change = std::make_shared<const DirectoryChange>(std::move(change)),
                  .state = State::kWaits};
}

std::vector<UnsavedMembers::Change> UnsavedMembers::Take(Instant now) {
  const bool takes_refused = now >= again_at_;
  std::vector<Change> taken;
  for (auto& [id, unsaved] : unsaved_) {
    if (unsaved.state == State::kSubmitted) continue;
    if (unsaved.state == State::kRefused && !takes_refused) continue;
    unsaved.state = State::kSubmitted;
    taken.push_back(unsaved.change);
  }
  return taken;
}

void UnsavedMembers::Settle(const DirectoryChange& change, bool is_durable, Instant now) {
  if (is_durable) {
    pause_ = Duration(0);
    again_at_ = now;
  } else if (now >= again_at_) {
    pause_ = std::clamp<Duration>(2 * pause_, kPauseMin, kPauseMax);
    again_at_ = now + pause_;
  }
  const auto found = unsaved_.find(change.member.id);
  if (found == unsaved_.end() || found->second.change.get() != &change) return;
  if (is_durable) {
    unsaved_.erase(found);
  } else {
    found->second.state = State::kRefused;
  }
}

bool UnsavedMembers::Clear() { return !std::exchange(unsaved_, {}).empty(); }

}  // namespace ckv
