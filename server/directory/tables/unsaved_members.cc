#include "server/directory/tables/unsaved_members.h"

#include <utility>

namespace ckv {

void UnsavedMembers::Note(DirectoryChange change) {
  const HolderId id = change.member.id;
  unsaved_[id] = {.change = std::make_shared<const DirectoryChange>(std::move(change)),
                  .is_submitted = false};
}

std::vector<UnsavedMembers::Change> UnsavedMembers::Take() {
  std::vector<Change> taken;
  for (auto& [id, unsaved] : unsaved_) {
    if (std::exchange(unsaved.is_submitted, true)) continue;
    taken.push_back(unsaved.change);
  }
  return taken;
}

void UnsavedMembers::Settle(const DirectoryChange& change, bool is_durable) {
  const auto found = unsaved_.find(change.member.id);
  if (found == unsaved_.end() || found->second.change.get() != &change) return;
  if (is_durable) {
    unsaved_.erase(found);
  } else {
    found->second.is_submitted = false;
  }
}

bool UnsavedMembers::Clear() { return !std::exchange(unsaved_, {}).empty(); }

}  // namespace ckv
