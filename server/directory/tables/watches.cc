#include "server/directory/tables/watches.h"

#include <utility>

#include "proto/base/status.h"

namespace ckv {

std::optional<DirectoryEvent> WatchPosition::Next(const LeaseTable& leases,
                                                  const CorporaByKey& corpora) {
  if (phase_ == Phase::kMembers) {
    const auto next = last_member_ ? leases.all().upper_bound(*last_member_) : leases.all().begin();
    if (next != leases.all().end()) {
      last_member_ = next->first;
      return DirectoryEvent{.kind = DirectoryEvent::Kind::kMemberUp,
                            .member = next->second.member,
                            .corpus = nullptr};
    }
    phase_ = Phase::kCorpora;
  }
  if (phase_ == Phase::kCorpora) {
    auto next = last_corpus_ ? corpora.upper_bound(*last_corpus_) : corpora.begin();
    while (next != corpora.end() && !Sees(*next->second)) ++next;
    if (next != corpora.end()) {
      last_corpus_ = next->first;
      return DirectoryEvent{
          .kind = DirectoryEvent::Kind::kCorpusPublished, .member = {}, .corpus = next->second};
    }
    phase_ = Phase::kChanges;
    return DirectoryEvent{};  // kSynced
  }
  if (events_.empty()) return std::nullopt;
  std::optional<DirectoryEvent> event = std::move(events_.front());
  events_.pop_front();
  return event;
}

bool WatchPosition::IsAhead(const DirectoryEvent& event) const {
  if (event.corpus == nullptr)
    return phase_ == Phase::kMembers && (!last_member_ || *last_member_ < event.member.id);
  if (phase_ == Phase::kMembers) return true;
  return phase_ == Phase::kCorpora && (!last_corpus_ || *last_corpus_ < KeyOf(*event.corpus));
}

void WatchPosition::Add(const DirectoryEvent& event) {
  if (phase_ == Phase::kBehind) return;
  if (event.corpus != nullptr && !Sees(*event.corpus)) return;
  if (IsAhead(event)) return;
  if (events_.size() >= kBacklogMax) {
    phase_ = Phase::kBehind;
    events_.clear();
    return;
  }
  events_.push_back(event);
}

Watches::~Watches() { CKV_CHECK(positions_.empty()); }

void Watches::Notify(const DirectoryEvent& event) {
  ++change_count_;
  for (WatchPosition* position : positions_) position->Add(event);
}

void Watches::ReportReplicasChanged(const CorporaByKey& corpora) {
  for (const auto& [key, corpus] : corpora)
    Notify({.kind = DirectoryEvent::Kind::kReplicasChanged, .member = {}, .corpus = corpus});
}

}  // namespace ckv
