// Watchers: the state as it is, then every change of it.

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "server/directory/directory_state.h"

namespace ckv {

DirectoryState::Watcher::~Watcher() { state_->Forget(this); }

absl::StatusOr<std::unique_ptr<DirectoryState::Watcher>> DirectoryState::Watch(
    std::string_view tenant, bool all_tenants) {
  // Made before the lock is taken: its destructor takes the lock.
  std::unique_ptr<Watcher> watcher(new Watcher(this, tenant, all_tenants));
  absl::MutexLock lock(&mu_);
  if (watchers_.size() >= options_.watcher_count_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d watchers, limit reached", watchers_.size()));
  }
  watchers_.push_back(watcher.get());
  return watcher;
}

absl::StatusOr<std::optional<DirectoryEvent>> DirectoryState::Next(Watcher& watcher,
                                                                   Instant deadline) {
  CKV_CHECK(watcher.state_ == this);
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  options_.clock->Await(mu_, absl::Condition(&watcher, &Watcher::Ready), deadline);
  if (watcher.fell_behind_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("fell %d events behind: start the watch again", kWatchBacklogMax));
  }
  if (watcher.phase_ != Watcher::Phase::kChanges) return NextOfSnapshot(watcher);
  std::optional<DirectoryEvent> event;
  if (watcher.events_.empty()) return event;
  event = std::move(watcher.events_.front());
  watcher.events_.pop_front();
  return event;
}

std::optional<DirectoryEvent> DirectoryState::NextOfSnapshot(Watcher& watcher) {
  if (watcher.phase_ == Watcher::Phase::kMembers) {
    const auto next = watcher.last_member_ ? lease_by_member_.upper_bound(*watcher.last_member_)
                                           : lease_by_member_.begin();
    if (next != lease_by_member_.end()) {
      watcher.last_member_ = next->first;
      return DirectoryEvent{.kind = DirectoryEvent::Kind::kMemberUp,
                            .member = leases_.find(next->second)->second.member,
                            .corpus = nullptr};
    }
    watcher.phase_ = Watcher::Phase::kCorpora;
  }
  auto next = watcher.last_corpus_ ? corpora_.upper_bound(*watcher.last_corpus_) : corpora_.begin();
  while (next != corpora_.end() && !watcher.Sees(*next->second)) ++next;
  if (next != corpora_.end()) {
    watcher.last_corpus_ = next->first;
    return DirectoryEvent{
        .kind = DirectoryEvent::Kind::kCorpusPublished, .member = {}, .corpus = next->second};
  }
  watcher.phase_ = Watcher::Phase::kChanges;
  return DirectoryEvent{};  // kSynced
}

void DirectoryState::Tell(const DirectoryEvent& event) {
  ++change_count_;
  for (Watcher* watcher : watchers_) {
    if (watcher->fell_behind_) continue;
    if (event.corpus != nullptr && !watcher->Sees(*event.corpus)) continue;
    if (watcher->IsAhead(event)) continue;
    if (watcher->events_.size() >= kWatchBacklogMax) {
      watcher->fell_behind_ = true;
      watcher->events_.clear();
      continue;
    }
    watcher->events_.push_back(event);
  }
}

void DirectoryState::Forget(Watcher* watcher) {
  absl::MutexLock lock(&mu_);
  std::erase(watchers_, watcher);
}

}  // namespace ckv
