// The requester's memory of the directory: immutable corpora and members, so that a query asks no
// directory.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/control.h"
#include "proto/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

// Thread-safe; no lock is held while the directory is asked. What a Forget overtakes is returned to
// its caller but not kept.
class DirectoryView {
 public:
  // Chunks of all kept corpora together; beyond it everything is forgotten and asked anew.
  static constexpr size_t kKeptChunkCountMax = size_t{1} << 22;
  static constexpr size_t kKeptCorpusCountMax = 4096;

  // `directory` must outlive the view.
  explicit DirectoryView(DirectoryControl* directory) : directory_(directory) {}
  DirectoryView(const DirectoryView&) = delete;
  DirectoryView& operator=(const DirectoryView&) = delete;

  //   NotFound            no such corpus for this tenant.
  //   Unavailable         nothing is kept and the directory does not answer.
  //   InvalidArgument     what the directory sent is not a corpus.
  absl::StatusOr<std::shared_ptr<const Corpus>> Resolve(std::string_view name,
                                                        std::string_view tenant, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // A nameless corpus of these chunks; the same ids give the same snapshot.
  //   InvalidArgument     no ids, or more than kCorpusChunkCountMax.
  //   NotFound            one that nobody holds; says which.
  //   FailedPrecondition  known, but only with another geometry.
  absl::StatusOr<std::shared_ptr<const Corpus>> ResolveChunks(std::span<const ChunkId> ids,
                                                              const Geometry& geometry,
                                                              std::string_view tenant,
                                                              Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Every tenant's corpus of this name, and all nameless ones, which may have chunks of it; an
  // empty name: everything, members too.
  void Forget(std::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // This snapshot, under whatever name it is kept.
  void Forget(const Corpus& corpus) ABSL_LOCKS_EXCLUDED(mu_);
  // A holder of this snapshot does not answer: the directory is asked before it is used again, and
  // only while the directory is away, too, is it used as it is.
  void Doubt(const Corpus& corpus) ABSL_LOCKS_EXCLUDED(mu_);

  // Every holder that is registered now; always asks the directory.
  absl::StatusOr<absl::flat_hash_map<HolderId, Member>> ListHolders(Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Where a holder is. With `refresh` the directory is asked whatever is kept.
  //   Unavailable         not registered now, or the directory does not answer.
  absl::StatusOr<Member> FindMember(const HolderId& id, bool refresh, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Snapshot {
    std::shared_ptr<const Corpus> corpus;  // null: nothing is kept
    bool doubtful = false;
  };
  using Kept = absl::flat_hash_map<std::string, Snapshot>;

  absl::StatusOr<Corpus> AskForChunks(std::span<const ChunkId> ids, const Geometry& geometry,
                                      std::string_view tenant, Instant deadline);
  Snapshot Find(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);
  // What to use of what is kept and the directory's answer, which is kept from now on.
  absl::StatusOr<std::shared_ptr<const Corpus>> Take(const std::string& key, const Snapshot& kept,
                                                     absl::StatusOr<Corpus> answer,
                                                     uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);
  void Keep(const std::string& key, std::shared_ptr<const Corpus> corpus, uint64_t generation)
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t generation() ABSL_LOCKS_EXCLUDED(mu_);

  DirectoryControl* const directory_;
  absl::Mutex mu_;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;  // of Forget
  Kept kept_ ABSL_GUARDED_BY(mu_);
  size_t kept_chunk_count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<HolderId, Member> members_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
