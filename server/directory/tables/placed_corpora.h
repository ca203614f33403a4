// The corpora of a directory, and where their chunks are.
//
// Each corpus is indexed by its chunks' ids, by their heads, and by the holders that it places
// chunks on. The members that announce copies are kept here too: an announcement counts only while
// a corpus has its chunk.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "proto/corpus.h"
#include "server/directory/prompt/head_index.h"
#include "server/directory/tables/corpus_key.h"
#include "server/directory/tables/corpus_rebuild.h"
#include "server/directory/tables/replica_table.h"

namespace ckv {

// Returns the holders that the corpus places chunks on.
absl::btree_set<HolderId> HoldersOf(const Corpus& corpus);

// Not thread-safe: its owner's lock guards it.
class PlacedCorpora {
 public:
  // At most `replica_count_max` announced copies are kept.
  explicit PlacedCorpora(uint64_t replica_count_max) : replicas_(replica_count_max) {}

  const CorporaByKey& all() const { return corpora_; }
  // Returns the corpus, or null if there is none.
  std::shared_ptr<const Corpus> Find(const CorpusKey& key) const;
  // The chunks of all corpora; a chunk in several corpora counts once for each.
  uint64_t chunk_count() const { return chunk_count_; }

  // Replaces the corpus `key` by `corpus`; null removes it. Unless null, `orphans` receives what
  // the replaced version leaves on holders (DirectoryState::Orphans). Chunks in `reports` are
  // omitted: they may be all that is left of a corpus that is not whole yet.
  void Replace(const CorpusKey& key, const std::shared_ptr<const Corpus>& corpus,
               const CorpusRebuild& reports, std::vector<ChunkPlacement>* orphans);

  // Returns the places of a chunk. Valid until the next change.
  ReplicaTable::Places PlacesOf(const ChunkId& id) const;
  // Returns how many corpora place the chunk on the holder of this name, as published or leased. If
  // `holder` is empty, counts corpora that place it anywhere.
  uint32_t CountReferences(const ChunkId& id, std::string_view holder) const;

  // The corpora that place chunks on a holder, and the number of those chunks.
  using CountByKey = std::map<CorpusKey, uint64_t>;
  const absl::flat_hash_map<HolderId, CountByKey>& by_holder() const { return by_holder_; }
  // Returns null if no corpus places chunks on the holder. Valid until the next change.
  const CountByKey* PlacedOn(const HolderId& holder) const;
  // Returns the number of chunks that corpora place on the holder.
  uint64_t CountPlacedOn(const HolderId& holder) const;

  // Announces a copy of the chunk for `tenant`. If it is new, adds the corpora that list the member
  // now to `changed`.
  ReplicaTable::Outcome Announce(uint64_t lease_id, const HolderId& member, std::string_view tenant,
                                 const ChunkId& id, CorporaByKey& changed);
  // Withdraws the announcements for `tenant`, or for all tenants if unset. Returns the corpora that
  // listed the member.
  CorporaByKey Withdraw(uint64_t lease_id, std::optional<std::string_view> tenant,
                        std::span<const ChunkId> ids);

  const ReplicaTable& replicas() const { return replicas_; }
  const HeadIndex& heads() const { return heads_; }

 private:
  void AddPlaces(const std::shared_ptr<const Corpus>& corpus);
  void RemovePlaces(const Corpus& corpus);
  // Adds or subtracts the corpus' chunks per holder.
  void CountPlaces(const Corpus& corpus, bool in);
  std::vector<ChunkPlacement> OrphansOf(const Corpus& gone, const CorpusRebuild& reports) const;
  bool IsPlacedOn(const ChunkPlace& place, std::string_view holder) const;

  CorporaByKey corpora_;
  absl::flat_hash_map<ChunkId, std::vector<ChunkPlace>> places_;
  absl::flat_hash_map<HolderId, CountByKey> by_holder_;
  uint64_t chunk_count_ = 0;
  HeadIndex heads_;
  ReplicaTable replicas_;
};

}  // namespace ckv
