// The members that have copies of chunks in addition to the holders that corpora were published
// with, while their leases are valid. Part of the directory's state.
//
// A member announces a chunk for the tenant that may read it there. Only that tenant's corpora list
// the member. A chunk announced for "" is readable by everyone, and every corpus lists the member.
// An id names inputs that other tenants may guess. So another tenant's corpus with the same id does
// not reveal the copy, nor send readers to a member that would refuse them (I6).

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

// The place of a chunk in a corpus.
struct ChunkPlace {
  std::shared_ptr<const Corpus> corpus;
  uint32_t ordinal = 0;
};

// Not thread-safe: its owner's lock guards it. `places` are all the places where corpora have the
// chunk.
class ReplicaTable {
 public:
  using Places = std::span<const ChunkPlace>;

  explicit ReplicaTable(uint64_t replica_count_max) : replica_count_max_(replica_count_max) {}

  enum class Outcome {
    kAdded,
    // The lease announced it before, or all these corpora were published with the member.
    kKept,
    // There is no place, every place has kReplicaCountMax members, or the table has
    // replica_count_max.
    kRefused,
  };
  // Announces the chunk. Only places in corpora of `tenant` count, or all places if it is "".
  Outcome Announce(uint64_t lease_id, const HolderId& member, std::string_view tenant,
                   const ChunkId& id, Places places);
  // Withdraws the announcements for `tenant`, or for all tenants if unset. Returns the tenants they
  // were withdrawn from.
  std::vector<std::string> Withdraw(uint64_t lease_id, std::optional<std::string_view> tenant,
                                    const ChunkId& id, Places places);
  // Returns true if `corpus` lists the members of announcements for `tenant`.
  static bool IsReported(const Corpus& corpus, std::string_view tenant) {
    return tenant.empty() || corpus.tenant == tenant;
  }
  // Returns the chunks that the lease has announced, in the order of ids.
  std::vector<ChunkId> ChunksOf(uint64_t lease_id) const;

  // Returns the members that `corpus` lists for `chunk` and that are not among its holders. The
  // oldest announcement is first. Holders and members together are at most kReplicaCountMax.
  std::vector<HolderId> LeasedOf(const Corpus& corpus, const ChunkPlacement& chunk) const;
  // The same for every chunk of a corpus that has members, without visiting the others.
  struct Leased {
    uint32_t ordinal = 0;
    std::vector<HolderId> members;
  };
  std::vector<Leased> LeasedOf(const Corpus& corpus) const;

  // Call when the corpus is published, or withdrawn.
  void AddCorpus(const Corpus& corpus);
  void RemoveCorpus(const Corpus& corpus);
  // Call when no corpus has the chunk any more: its announcements are removed.
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
  // The same data by lease and by corpus. So the end of a lease and a lookup of a corpus cost only
  // their own entries, not the whole table.
  absl::flat_hash_map<uint64_t, absl::btree_set<ChunkId>> by_lease_;
  absl::flat_hash_map<const Corpus*, absl::btree_set<uint32_t>> ordinals_;
};

}  // namespace ckv
