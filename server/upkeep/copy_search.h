// The search for an intact copy of a chunk that this holder lost: whose corpora place it here, and
// which other holders have it.

#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/ids.h"
#include "server/upkeep/repairer.h"

namespace ckv {

// A RepairSource whose calls to the directory and to holders are another class's. The holders of a
// chunk are tried one after another, in the order in which the directory lists them. If none has
// it, the other holders are asked: one may have a copy that a drain, or a load that failed, left
// behind. Restore is for one thread.
class CopySearch : public RepairSource {
 public:
  // The most holders without a listed copy that are asked for one chunk.
  static constexpr size_t kUnlistedMax = 32;

  absl::StatusOr<Restored> Restore(const LostChunk& lost, Instant deadline) final;

 protected:
  // `self` is this holder. `clock` must outlive this object.
  CopySearch(HolderId self, Clock* clock) : self_(std::move(self)), clock_(*clock) {}

  // The tenants whose corpora may have the chunk, for one whose readers are not known.
  virtual absl::StatusOr<std::vector<std::string>> AllTenants(Instant deadline) = 0;
  // The next two are answered by the directory. LocateChunk returns the chunk alone, in each corpus
  // of the tenant that has it.
  virtual absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) = 0;
  //   NotFound            no corpus of the tenant has the chunk.
  virtual absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id,
                                                          const std::string& tenant,
                                                          Instant deadline) = 0;
  // Brings the only chunk of `place` from the holder `from` into this holder's store.
  virtual absl::Status CopyFrom(const Member& from, const Corpus& place, Instant deadline) = 0;

  // For Cancel of the derived class; callable from any thread.
  void Stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  const HolderId& self() const { return self_; }

 private:
  absl::Status RestoreFor(const Corpus& place, const std::vector<Member>& members,
                          Instant deadline);
  // Brings the chunk from a holder that has it and is not among `listed`. Returns false if none
  // has.
  bool FindUnlisted(const Corpus& place, const std::vector<HolderId>& listed,
                    const std::vector<Member>& members, Instant deadline);

  const HolderId self_;
  Clock& clock_;
  std::atomic<bool> stopped_{false};
};

}  // namespace ckv
