// Carries a partition plan out. It copies chunks from holder to holder, makes sure of them,
// switches the corpus to its new placement, and drops what is left over.

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
#include "client/ctl/fleet.h"
#include "proto/corpus.h"
#include "store/corpus/partition.h"

namespace ckv::ctl {

// Orders in flight, in all and at one holder, whichever side of them it is on. Each keeps two
// chunks in flight (kPushDepth): four of the sixteen puts that a holder takes at a time.
inline constexpr uint32_t kOrderCountMax = 8;
inline constexpr uint32_t kHolderOrderCountMax = 2;
// Chunks of one order: what is lost of a failed one is asked of another holder.
inline constexpr size_t kOrderChunkCountMax = 64;
// How often every live holder of a chunk is asked to push it before the run gives up, with a pause
// in between. A holder that restarts, or is full of puts, is back by then or is not.
inline constexpr uint32_t kRoundCountMax = 3;
inline constexpr Duration kRoundPause = std::chrono::seconds(1);
// How often chunks that are not where they were pushed are pushed again.
inline constexpr uint32_t kPassCountMax = 3;

// The copies made to one holder.
struct CopyTally {
  uint32_t chunks_sent = 0;
  uint32_t chunks_reused = 0;  // there already: of an earlier run, or of another corpus
  uint64_t bytes_sent = 0;
};

// A chunk that arrived.
struct CopiedChunk {
  uint32_t chunk = 0;  // ordinal
  HolderId to;
  bool reused = false;
  uint64_t row_bytes = 0;
};

// One thread; it makes its own.
class PartitionRun {
 public:
  // Told of every copy, on any thread, one at a time; an error ends the run with it.
  using OnCopied = std::function<absl::Status(const CopiedChunk&)>;

  // `corpus` as the directory tells it, with its leased members; `plan` of it. All must outlive the
  // run, `members` are copied.
  //   FailedPrecondition  a chunk to be copied has no live holder, or is wanted on one that is not.
  static absl::StatusOr<std::unique_ptr<PartitionRun>> Create(Fleet* fleet, const Corpus* corpus,
                                                              const PartitionPlan* plan,
                                                              std::span<const Member> members,
                                                              OnCopied on_copied);

  // Makes the copies. Asks each holder that is to keep a chunk, or got it, whether it is there with
  // the checksums of a holder that had it. Copies again what is not. Afterwards the new placement
  // can be published: every chunk whose old copies will go was seen on all its new holders. The
  // questions also keep a collection of garbage from them. May be run again after any end.
  //   the last error of a chunk that nobody could push; says that nothing was switched.
  absl::Status Copy() ABSL_LOCKS_EXCLUDED(mu_);
  const std::map<std::string, CopyTally>& tallies() const { return tallies_; }  // after Copy

  // The corpus in its new placement, if its version still is the one of the plan.
  //   FailedPrecondition  it changed meanwhile: nothing was switched or dropped; run again.
  absl::StatusOr<v1::PublishCorpusReply> Switch();

 private:
  struct Task {
    uint32_t chunk = 0;
    uint32_t to = 0;                // index in members_
    std::vector<uint32_t> sources;  // indexes in members_, in the order to be asked
    uint32_t try_count = 0;
    uint32_t from() const { return sources[try_count % sources.size()]; }
  };
  using Pair = std::pair<uint32_t, uint32_t>;  // from, to
  struct Check {
    uint32_t chunk = 0;
    uint32_t to = 0;
    bool copied = false;  // else it was there before
  };

  PartitionRun(Fleet* fleet, const Corpus* corpus, const PartitionPlan* plan, OnCopied on_copied)
      : fleet_(*fleet), corpus_(*corpus), plan_(*plan), on_copied_(std::move(on_copied)) {}
  absl::Status Prepare(std::span<const Member> members);
  absl::StatusOr<uint32_t> MemberOf(const HolderId& holder) const;
  // Live members that have the chunk and are not `to`; `first` before the others.
  std::vector<uint32_t> SourcesOf(uint32_t chunk, uint32_t to, const HolderId* first) const;

  absl::Status PushAll(std::vector<Task> tasks) ABSL_LOCKS_EXCLUDED(mu_);
  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasTurn() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns the next order's chunks, all of one pair whose holders have a turn. It is empty if none
  // has.
  std::vector<Task> TakeOrder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns how many of the order, from its first, arrived.
  absl::Status RunOrder(const std::vector<Task>& order, size_t& done) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Arrived(const Task& task, const v1::PushChunksReply& reply) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives tasks that did not arrive their next source, or ends the run.
  void Retry(std::vector<Task> order, size_t done, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t BytesOf(uint32_t chunk) const {
    return corpus_.chunks[chunk].token_count * corpus_.geometry.token_bytes();
  }

  // The checks whose chunk is not where it should be.
  absl::StatusOr<std::vector<Check>> FindMissing(std::span<const Check> checks)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> IsThere(const Check& check);
  absl::StatusOr<v1::GetChunkInfoReply> AskInfo(uint32_t member, uint32_t chunk);

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
  std::vector<uint32_t> active_ ABSL_GUARDED_BY(mu_);  // orders of each member
  uint32_t order_count_ ABSL_GUARDED_BY(mu_) = 0;      // in flight
  absl::Status status_ ABSL_GUARDED_BY(mu_);           // the first that ends the run
};

}  // namespace ckv::ctl
