// The watchers of a directory's state, and how far each has read it.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/corpus.h"
#include "server/directory/tables/corpus_key.h"
#include "server/directory/tables/lease_table.h"

namespace ckv {

struct DirectoryEvent {
  enum class Kind {
    kMemberUp,
    kMemberGone,
    kCorpusPublished,
    kCorpusDropped,
    kReplicasChanged,
    kSynced,
  };
  Kind kind = Kind::kSynced;
  Member member;                         // member events
  std::shared_ptr<const Corpus> corpus;  // corpus events
};

// One watcher's position in the state as it is, which it reads in steps, and then in the changes.
//
//   phase       Next returns                                  the next phase
//   kMembers    kMemberUp of the next member, by name         kCorpora after the last one
//   kCorpora    kCorpusPublished of the next corpus, by key   kChanges after the last one: kSynced
//   kChanges    the oldest queued change                      none
//   kBehind     nothing                                       none
//
// Each of the first three becomes kBehind if kBacklogMax changes are queued and one more arrives,
// or by Break. A change is queued only if the watcher has already read what it changes. Not
// thread-safe: its owner's lock guards it.
class WatchPosition {
 public:
  static constexpr size_t kBacklogMax = 4096;

  WatchPosition(std::string_view tenant, bool all_tenants)
      : tenant_(tenant), all_tenants_(all_tenants) {}

  // Returns whether Next has something to return, the watcher is behind, or it must not wait.
  bool IsReady() const { return phase_ != Phase::kChanges || !events_.empty() || is_ended_; }
  bool IsBehind() const { return phase_ == Phase::kBehind; }
  std::optional<DirectoryEvent> Next(const LeaseTable& leases, const CorporaByKey& corpora);
  // Queues a change of the state, if the watcher must see it.
  void Add(const DirectoryEvent& event);
  // From now on the watcher does not wait.
  void End() { is_ended_ = true; }
  // The watcher has missed something.
  void Break() {
    phase_ = Phase::kBehind;
    events_.clear();
  }

 private:
  enum class Phase { kMembers, kCorpora, kChanges, kBehind };

  bool Sees(const Corpus& corpus) const {
    return all_tenants_ || corpus.tenant.empty() || corpus.tenant == tenant_;
  }
  // Whether the watcher has yet to read this event's member or corpus.
  bool IsAhead(const DirectoryEvent& event) const;

  const std::string tenant_;
  const bool all_tenants_;
  Phase phase_ = Phase::kMembers;
  // The last member and corpus that were read.
  std::optional<HolderId> last_member_;
  std::optional<CorpusKey> last_corpus_;
  std::deque<DirectoryEvent> events_;
  bool is_ended_ = false;
};

// Not thread-safe: its owner's lock guards it.
class Watches {
 public:
  ~Watches();

  // `position` must be removed before it is destroyed.
  void Add(WatchPosition* position) {
    positions_.push_back(position);
    if (is_ended_) position->End();
  }
  void Remove(WatchPosition* position) { std::erase(positions_, position); }
  size_t count() const { return positions_.size(); }
  // Ends the waits of all watchers, also of those that are added later.
  void End() {
    is_ended_ = true;
    for (WatchPosition* const position : positions_) position->End();
  }

  // Makes all watchers begin again.
  void Break() {
    for (WatchPosition* const position : positions_) position->Break();
  }

  // Queues the event for the watchers that must see it, and counts a change.
  void Notify(const DirectoryEvent& event);
  // Queues kReplicasChanged for each of the corpora.
  void ReportReplicasChanged(const CorporaByKey& corpora);
  // Counts a change that watchers do not see.
  void NoteChange() { ++change_count_; }
  // Changes in members, corpora and lacking chunks.
  uint64_t change_count() const { return change_count_; }

 private:
  std::vector<WatchPosition*> positions_;
  bool is_ended_ = false;
  uint64_t change_count_ = 0;
};

}  // namespace ckv
