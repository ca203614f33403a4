// When corpora were published, as far as this incarnation of the directory has seen it. For people:
// nothing is decided by it, and a restart forgets it.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"

namespace ckv {

// Thread-safe.
class PublishTimes {
 public:
  // As many corpora as a directory takes. Corpora that a holder's report dropped may be among the
  // entries; if there are more in all, the times are forgotten.
  static constexpr size_t kCountMax = 100'000;

  void Note(const std::string& tenant, const std::string& name, uint64_t version, Instant now)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (times_.size() >= kCountMax && !times_.contains({tenant, name})) times_.clear();
    Entry& entry = times_[{tenant, name}];
    // Two that publish at once are here in any order.
    if (version > entry.version) entry = {version, now};
  }
  void Forget(const std::string& tenant, const std::string& name) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    times_.erase({tenant, name});
  }
  // Returns when this version was published; nothing if that was before this life.
  std::optional<Instant> Of(const std::string& tenant, const std::string& name,
                            uint64_t version) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto found = times_.find({tenant, name});
    if (found == times_.end() || found->second.version != version) return std::nullopt;
    return found->second.at;
  }

 private:
  struct Entry {
    uint64_t version = 0;
    Instant at;
  };

  mutable absl::Mutex mu_;
  std::map<std::pair<std::string, std::string>, Entry> times_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
