// The requester's copy of the directory's state: immutable corpora and members, so that calls need
// not query the directory.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/prompt_match.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "transport/control.h"

namespace ckv {

// Thread-safe; holds no lock during a query of the directory. If an Invalidate overtakes an answer,
// the answer is returned to its caller but not kept.
class DirectoryView {
 public:
  // The limits of the kept corpora: their chunks together, and their number. Beyond either, all
  // kept corpora are dropped and queried again.
  static constexpr size_t kKeptChunkCountMax = size_t{1} << 22;
  static constexpr size_t kKeptCorpusCountMax = 4096;
  // Beyond it, all keys are dropped and queried again.
  static constexpr size_t kKeptTenantKeyCountMax = 4096;

  // Both must outlive the view.
  explicit DirectoryView(DirectoryControl* directory, Clock* clock = Clock::Real())
      : directory_(directory), clock_(clock) {}
  DirectoryView(const DirectoryView&) = delete;
  DirectoryView& operator=(const DirectoryView&) = delete;

  // Returns the corpus of this name. If the directory is queried and its answer names an unknown
  // holder, queries the members too. So kernel targets are known before the first call. If that
  // fails, the corpus is returned anyway. If nothing is kept and the directory is unreachable,
  // retries until the wait of client/holders/retry.h is over.
  //   NotFound            there is no such corpus for this tenant.
  //   Unavailable         nothing is kept and the directory does not answer.
  //   InvalidArgument     the directory's answer is not a corpus.
  absl::StatusOr<std::shared_ptr<const Corpus>> Resolve(std::string_view name,
                                                        std::string_view tenant, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the corpus that Resolve would return without a query of the directory, or null.
  std::shared_ptr<const Corpus> Kept(std::string_view name, std::string_view tenant)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns a nameless corpus of these chunks. The same ids give the same snapshot. Queries members
  // as Resolve does.
  //   InvalidArgument     no ids, or more than kCorpusChunkCountMax.
  //   NotFound            no holder has one of the chunks; names the chunk.
  //   FailedPrecondition  a chunk is known, but only with another geometry.
  absl::StatusOr<std::shared_ptr<const Corpus>> ResolveChunks(std::span<const ChunkId> ids,
                                                              const Geometry& geometry,
                                                              std::string_view tenant,
                                                              Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the key of a tenant, and keeps it until everything is invalidated.
  //   Errors of the directory.
  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the prefix match of a prompt, by one call to the directory. Errors as
  // Requester::MatchPrompt.
  absl::StatusOr<PromptMatch> MatchPrompt(const PromptCall& call) ABSL_LOCKS_EXCLUDED(mu_);

  // Drops every tenant's corpus of this name, and all nameless ones, which may share its chunks. If
  // `name` is empty, changes were missed, so everything becomes doubtful, including members and
  // keys. Doubtful entries are queried again before use, and used as they are if the directory is
  // unreachable.
  void Invalidate(std::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops this snapshot, under any name.
  void Invalidate(const Corpus& corpus) ABSL_LOCKS_EXCLUDED(mu_);
  // Call when a holder of this snapshot does not answer. The directory is then queried before the
  // snapshot is used again. If the directory is unreachable too, the snapshot is used as it is.
  void Doubt(const Corpus& corpus) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns every holder that is registered now. Always queries the directory.
  absl::StatusOr<absl::flat_hash_map<HolderId, Member>> ListHolders(Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the member of a holder. With `refresh`, queries the directory even if a copy is kept,
  // and does not use the copy.
  //   Unavailable         the holder is not registered now, or the directory does not answer.
  absl::StatusOr<Member> FindMember(const HolderId& id, bool refresh, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps the state of a holder that a watch of the directory reported. Ignores other roles, and
  // news of an earlier epoch than the known one.
  void Note(const Member& member) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the known holders, including those that must be queried again before use. Never queries
  // the directory.
  absl::flat_hash_map<HolderId, Member> KnownHolders() const ABSL_LOCKS_EXCLUDED(mu_);
  // Increases whenever KnownHolders may have changed.
  uint64_t member_news() const { return member_news_.load(std::memory_order_acquire); }

  // Returns true if this snapshot is kept, doubtful or not. A snapshot that is no longer kept has
  // changed at the directory, or was dropped at a limit.
  bool Keeps(const Corpus& corpus) const ABSL_LOCKS_EXCLUDED(mu_);
  // Increases whenever a call that waits for a holder should check again. A holder is new, or has
  // another epoch or address, or a corpus has changed.
  uint64_t changes() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until `changes` differs from `seen`, but not beyond `until`.
  void AwaitChange(uint64_t seen, Instant until) const ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the waits of AwaitChange.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Snapshot {
    std::shared_ptr<const Corpus> corpus;  // null if nothing is kept
    bool doubtful = false;
  };
  using Snapshots = absl::flat_hash_map<std::string, Snapshot>;

  // Queries the members if the corpus names an unknown one, or if all must be queried again.
  void HearOfHolders(const Corpus& corpus, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  bool KnowsHolders(const Corpus& corpus) const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `query` until it returns anything but that the directory is unreachable, or the wait is
  // over.
  absl::Status QueryPatiently(Instant deadline, absl::FunctionRef<absl::Status()> query) const;
  absl::StatusOr<Corpus> ReadChunks(std::span<const ChunkId> ids, const Geometry& geometry,
                                    std::string_view tenant, Instant deadline);
  Snapshot Find(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps the directory's answer and returns the snapshot to use: the answer, or the kept one if
  // the directory is unreachable.
  absl::StatusOr<std::shared_ptr<const Corpus>> Take(const std::string& key, const Snapshot& kept,
                                                     absl::StatusOr<Corpus> answer,
                                                     uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);
  void Keep(const std::string& key, std::shared_ptr<const Corpus> corpus, uint64_t generation)
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t generation() ABSL_LOCKS_EXCLUDED(mu_);

  DirectoryControl* const directory_;
  Clock* const clock_;
  mutable absl::Mutex mu_;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;  // counts calls of Invalidate
  Snapshots kept_ ABSL_GUARDED_BY(mu_);
  size_t kept_chunk_count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Mutex sharing_mu_;
  MemberSharing sharing_ ABSL_GUARDED_BY(sharing_mu_);  // used for all kept corpora
  struct KeptKey {
    TenantKey key;          // never zero
    bool doubtful = false;  // query again; keep if the directory is unreachable
  };
  absl::flat_hash_map<std::string, KeptKey> keys_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<HolderId, Member> members_ ABSL_GUARDED_BY(mu_);
  bool members_listed_ ABSL_GUARDED_BY(mu_) = false;  // since everything was last invalidated
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<uint64_t> member_news_{0};
};

}  // namespace ckv
