// Executes a partition plan: copies chunks between holders, verifies the copies, and switches the
// corpus to its new placement. The command then drops the old copies.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/tools/ctl/fleet.h"
#include "proto/corpus.h"
#include "store/corpus/partition.h"

namespace ckv::ctl {

// Orders in flight, in total and per holder, whether it is the source or the target. Each order
// keeps two chunks in flight (kPushDepth): four of the sixteen puts that a holder takes at a time.
inline constexpr uint32_t kOrderCountMax = 8;
inline constexpr uint32_t kHolderOrderCountMax = 2;
// Chunks per order. If an order fails, its remaining chunks are requested from another holder.
inline constexpr size_t kOrderChunkCountMax = 64;
// How often a push is requested from every live holder of a chunk before the run gives up, with a
// pause between rounds. By then, a holder that restarted or was full of puts has either recovered
// or will not.
inline constexpr uint32_t kRoundCountMax = 3;
inline constexpr Duration kRoundPause = std::chrono::seconds(1);
// How often chunks that are missing after a push are pushed again.
inline constexpr uint32_t kPassCountMax = 3;

// The copies made to one holder.
struct CopyTally {
  uint32_t chunks_sent = 0;
  uint32_t chunks_reused = 0;  // already there, from an earlier run or another corpus
  uint64_t bytes_sent = 0;
};

// A chunk that has arrived.
struct CopiedChunk {
  uint32_t chunk = 0;  // ordinal
  HolderId to;
  bool reused = false;
  uint64_t row_bytes = 0;
};

// Used by one thread; creates its own threads.
class PartitionRun {
 public:
  // Called for every copy, on any thread, one call at a time. An error ends the run with that
  // error.
  using OnCopied = std::function<absl::Status(const CopiedChunk&)>;

  // `corpus` is as the directory reports it, including its leased members; `plan` is for it. All
  // pointers must outlive the run; `members` are copied.
  //   FailedPrecondition  a chunk to be copied has no live holder, or its target is not live.
  static absl::StatusOr<std::unique_ptr<PartitionRun>> Create(Fleet* fleet, const Corpus* corpus,
                                                              const PartitionPlan* plan,
                                                              std::span<const Member> members,
                                                              OnCopied on_copied);

  // Makes the copies. Then checks each holder that received a chunk, or keeps one that loses other
  // copies. It must have the chunk, with the checksums of a holder that had it. Copies missing
  // chunks again. On success the new placement can be published: every chunk that will lose copies
  // was seen on all its new holders. The checks also protect the chunks from garbage collection.
  // May be repeated after any outcome.
  // All errors state that nothing was switched:
  //   DataLoss            holders have different rows of a chunk, or its only live holder lost it.
  //   Aborted             chunks keep disappearing from where they were pushed.
  //   the last error of a chunk that no holder could push.
  absl::Status Copy() ABSL_LOCKS_EXCLUDED(mu_);
  const std::map<std::string, CopyTally>& tallies() const { return tallies_; }  // after Copy

  // Publishes the corpus in its new placement, if its version is still the plan's.
  //   FailedPrecondition  the corpus changed meanwhile: nothing was switched or dropped; run again.
  absl::StatusOr<v1::PublishCorpusReply> Switch();

 private:
  struct Task {
    uint32_t chunk = 0;
    uint32_t to = 0;                // index in members_
    std::vector<uint32_t> sources;  // indexes in members_, in the order to try
    uint32_t try_count = 0;
    uint32_t from() const { return sources[try_count % sources.size()]; }
  };
  using Pair = std::pair<uint32_t, uint32_t>;  // from, to
  struct Check {
    uint32_t chunk = 0;
    uint32_t to = 0;
    bool copied = false;  // false: the holder had it before
  };

  PartitionRun(Fleet* fleet, const Corpus* corpus, const PartitionPlan* plan, OnCopied on_copied)
      : fleet_(*fleet), corpus_(*corpus), plan_(*plan), on_copied_(std::move(on_copied)) {}
  absl::Status Prepare(std::span<const Member> members);
  absl::StatusOr<uint32_t> MemberOf(const HolderId& holder) const;
  // Returns live members that have the chunk, except `to`; `first` precedes the others.
  std::vector<uint32_t> SourcesOf(uint32_t chunk, uint32_t to, const HolderId* first) const;

  absl::Status PushAll(std::vector<Task> tasks) ABSL_LOCKS_EXCLUDED(mu_);
  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasTurn() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns the next order's chunks, all for one pair whose holders both have room for an order.
  // Empty if there is no such pair.
  std::vector<Task> TakeOrder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets `done` to the number of chunks, counted from the order's first, that arrived.
  absl::Status RunOrder(const std::vector<Task>& order, size_t& done) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Arrived(const Task& task, const v1::PushChunksReply& reply) ABSL_LOCKS_EXCLUDED(mu_);
  // Assigns the next source to tasks that did not arrive, or ends the run.
  void Retry(std::vector<Task> order, size_t done, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t BytesOf(uint32_t chunk) const {
    return corpus_.chunks[chunk].token_count * corpus_.geometry.token_bytes();
  }

  // Returns the checks whose chunk is missing.
  absl::StatusOr<std::vector<Check>> FindMissing(std::span<const Check> checks)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> IsThere(const Check& check);
  absl::StatusOr<v1::GetChunkInfoReply> QueryInfo(uint32_t member, uint32_t chunk);

  Fleet& fleet_;
  const Corpus& corpus_;
  const PartitionPlan& plan_;
  const OnCopied on_copied_;
  std::vector<Member> members_;
  std::vector<std::unique_ptr<v1::HolderService::StubInterface>> stubs_;  // one a member
  std::vector<Task> copies_;
  std::vector<Check> checks_;
  std::map<std::string, CopyTally> tallies_;  // written under mu_ while there are threads

  absl::Mutex mu_;
  std::map<Pair, std::vector<Task>> waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> active_ ABSL_GUARDED_BY(mu_);  // orders per member
  uint32_t order_count_ ABSL_GUARDED_BY(mu_) = 0;      // in flight
  absl::Status status_ ABSL_GUARDED_BY(mu_);           // the first error that ends the run
};

}  // namespace ckv::ctl
