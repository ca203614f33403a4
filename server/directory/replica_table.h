// Which members hold chunks beside those that corpora were published with, for as long as their
// leases live. Part of the directory's state.
//
// A member announces a chunk for the tenant that may read it there, and only that tenant's corpora
// are told of it; what is announced for "" everyone may read, and is told of. An id names inputs
// that others may guess: a corpus of theirs with it tells them of no copy, nor sends them to one
// that would refuse them (I6).

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "proto/corpus.h"

namespace ckv {

// Where a chunk is in a corpus.
struct ChunkPlace {
  std::shared_ptr<const Corpus> corpus;
  uint32_t ordinal = 0;
};

// Not thread-safe: its owner's lock guards it. A call that names a chunk is given the places where
// corpora have it.
class ReplicaTable {
 public:
  using Places = std::span<const ChunkPlace>;

  explicit ReplicaTable(uint64_t replica_count_max) : replica_count_max_(replica_count_max) {}

  enum class Outcome {
    kAdded,
    kKept,     // the lease announced it before, or every corpus was published with the member
    kRefused,  // no place, kReplicaCountMax members at every place, or replica_count_max
  };
  // Of the places, those in corpora that are told what is announced for `tenant`.
  Outcome Announce(uint64_t lease_id, const HolderId& member, std::string_view tenant,
                   const ChunkId& id, Places places);
  // What was announced for `tenant`; absent: for all of them. Returns the tenants that it was
  // withdrawn from.
  std::vector<std::string> Withdraw(uint64_t lease_id, std::optional<std::string_view> tenant,
                                    const ChunkId& id, Places places);
  // Whether a corpus is told of what is announced for `tenant`.
  static bool IsTold(const Corpus& corpus, std::string_view tenant) {
    return tenant.empty() || corpus.tenant == tenant;
  }
  // What the lease has announced, in the order of ids.
  std::vector<ChunkId> ChunksOf(uint64_t lease_id) const;

  // The members that `corpus` is told of for its `chunk` and that are not among its holders, oldest
  // announcement first; with them no more than kReplicaCountMax.
  std::vector<HolderId> LeasedOf(const Corpus& corpus, const ChunkPlacement& chunk) const;
  // The same of every chunk of a corpus that has any, without looking at the others.
  struct Leased {
    uint32_t ordinal = 0;
    std::vector<HolderId> members;
  };
  std::vector<Leased> LeasedOf(const Corpus& corpus) const;

  // The corpus is published from now on, or no more.
  void AddCorpus(const Corpus& corpus);
  void RemoveCorpus(const Corpus& corpus);
  // No corpus has the chunk any more, so nobody is told of its members.
  void RemoveChunk(const ChunkId& id);

  uint64_t replica_count() const { return replica_count_; }

 private:
  struct Replica {
    uint64_t lease_id = 0;
    HolderId member;
    std::string tenant;
  };
  bool HasRoom(const HolderId& member, std::string_view tenant, Places places) const;
  void Unindex(uint64_t lease_id, const ChunkId& id);

  const uint64_t replica_count_max_;
  uint64_t replica_count_ = 0;
  absl::flat_hash_map<ChunkId, std::vector<Replica>> replicas_;
  // The same from the other sides, so that the end of a lease and a look at a corpus cost what they
  // have, not what there is.
  absl::flat_hash_map<uint64_t, absl::btree_set<ChunkId>> by_lease_;
  absl::flat_hash_map<const Corpus*, absl::btree_set<uint32_t>> ordinals_;
};

}  // namespace ckv
