// The loads that requesters report to the directory, and the ranking of those requesters.
//
// In memory only. A directory that starts, or begins to lead, has an empty table, which the next
// reports fill.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cost/network_oracle.h"
#include "client/rank/fleet_ranking.h"
#include "client/rank/rank.h"
#include "client/rank/serving_load.h"
#include "proto/base/clock.h"

namespace ckv {

struct LoadTableOptions {
  Clock* clock = Clock::Real();
  Duration ttl = std::chrono::seconds(3);  // for a notice without one
  Duration ttl_min = std::chrono::milliseconds(500);
  Duration ttl_max = std::chrono::seconds(60);
};

// The paths from one host, as its oracle had them.
struct PathsFrom {
  std::string_view host;
  std::shared_ptr<const NetworkSnapshot> snapshot;  // null if nothing was read yet
  Duration congestion_age_max{0};
};

// Thread-safe. Every call first ends the leases that have expired. A requester's place in a ranking
// is that of its name.
class LoadTable {
 public:
  static constexpr size_t kRequesterCountMax = 1024;
  // Distinct chunks of all digests: 140 bytes each, up to 37 MB with the table's free places.
  static constexpr size_t kChunkCountMax = 1u << 17;

  explicit LoadTable(const LoadTableOptions& options) : options_(options) {}
  LoadTable(const LoadTable&) = delete;
  LoadTable& operator=(const LoadTable&) = delete;

  // Takes a report, which renews the requester's lease, or ends it.
  //   InvalidArgument     ValidateNotice refuses it.
  //   AlreadyExists       a requester at another address has the name; has the time that is left.
  //   ResourceExhausted   there are kRequesterCountMax others.
  absl::StatusOr<LoadLease> Report(const LoadNotice& notice) ABSL_LOCKS_EXCLUDED(mu_);

  // Ranks the requesters. `query` must be valid (ValidateQuery). Does O(chunks + requesters) look-
  // ups, plus one step for each requester of each chunk. `out` keeps its memory from call to call.
  void Rank(const FleetQuery& query, std::span<const PathsFrom> from, FleetRanking& out)
      ABSL_LOCKS_EXCLUDED(mu_);

  size_t requester_count() ABSL_LOCKS_EXCLUDED(mu_);
  size_t chunk_count() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Slot = uint16_t;
  // One bit per slot.
  using SlotSet = std::array<uint64_t, kRequesterCountMax / 64>;
  struct Reported {
    Slot slot = 0;
    std::string address, host;
    ServingLoad load;
    Instant at;
    Instant expires;
    bool has_digest = false;
    std::vector<ChunkPrefix> cached;  // sorted; those that count
  };
  using ByName = absl::btree_map<std::string, Reported>;

  void Expire(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ByName::iterator Remove(ByName::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the requester's entry, and makes one if needed.
  absl::StatusOr<Reported*> EntryOf(const LoadNotice& notice, Instant now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Replaces the digest by `wanted`, which is sorted and has each chunk once.
  void SetCached(Reported& reported, const std::vector<ChunkPrefix>& wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Clear(ChunkPrefix prefix, Slot slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Both set matched_ for each slot.
  void MatchPrefix(std::span<const RankChunk> chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MatchAny(std::span<const RankChunk> chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const LoadTableOptions options_;

  absl::Mutex mu_;
  ByName by_name_ ABSL_GUARDED_BY(mu_);
  std::vector<Slot> free_slots_ ABSL_GUARDED_BY(mu_);
  Slot slot_count_ ABSL_GUARDED_BY(mu_) = 0;  // slots used so far, free or not
  absl::flat_hash_map<ChunkPrefix, SlotSet> slots_of_ ABSL_GUARDED_BY(mu_);
  Instant next_expiry_ ABSL_GUARDED_BY(mu_) = kInstantMax;
  // Used by the ranking in progress; they keep their memory.
  std::vector<double> matched_ ABSL_GUARDED_BY(mu_);  // by slot, in whole words of a set
  std::vector<RankCandidate> candidates_ ABSL_GUARDED_BY(mu_);
  Ranking ranking_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
