// Lists the engines whose requesters watch this directory. For display only: no decision depends on
// it.

#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/process_facts.h"

namespace ckv {

// Thread-safe. A directory has at most one entry per watcher (watcher_count_max).
class EngineList {
 private:
  struct Listed {
    EngineFacts facts;  // as reported at `at`
    Instant at;
  };

 public:
  // Lists an engine while this object exists. Must not outlive the list.
  class Entry {
   public:
    Entry(EngineList* list, EngineFacts facts, Instant now)
        : list_(list), place_(list->Add({std::move(facts), now})) {}
    ~Entry() { list_->Remove(place_); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    EngineList* const list_;
    const std::list<Listed>::iterator place_;
  };

  // Returns the engines as of `now`, ordered by name, host, rank and process id.
  std::vector<EngineFacts> At(Instant now) const ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<EngineFacts> engines;
    {
      absl::MutexLock lock(&mu_);
      for (const Listed& listed : listed_) {
        const Duration watched = std::max(now - listed.at, Duration(0));
        engines.push_back(listed.facts);
        engines.back().started_ago_ms +=
            static_cast<uint64_t>(watched / std::chrono::milliseconds(1));
      }
    }
    const auto key = [](const EngineFacts& engine) {
      return std::tie(engine.name, engine.host, engine.rank, engine.pid);
    };
    std::sort(engines.begin(), engines.end(),
              [&](const EngineFacts& a, const EngineFacts& b) { return key(a) < key(b); });
    return engines;
  }

 private:
  std::list<Listed>::iterator Add(Listed listed) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return listed_.insert(listed_.end(), std::move(listed));
  }
  void Remove(std::list<Listed>::iterator place) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    listed_.erase(place);
  }

  mutable absl::Mutex mu_;
  std::list<Listed> listed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
