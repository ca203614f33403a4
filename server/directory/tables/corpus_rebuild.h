// Corpora that holders report and that the directory does not have: the reports, and which corpora
// are complete.
//
// A directory that lost its disk, or was restored from an old copy, learns from its holders what
// was placed on them. A version of a corpus is whole if each of its chunks was reported by a holder
// of that chunk, and all reports agree. Only the highest reported version counts: a lower one is
// from a holder that was unreachable when the corpus changed. A corpus that is not whole is
// reported and never served. This is part of the directory's state.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "proto/corpus_part.h"

namespace ckv {

// A corpus that is not served.
struct UnprovenCorpus {
  std::string tenant, name;
  uint64_t version = 0;  // the highest reported version
  uint32_t chunk_count = 0;
  uint32_t missing_count = 0;  // chunks that no holder has reported
  bool conflict = false;       // two holders report different facts about this version
  std::string why;             // the contradiction, or why a whole corpus is not served
  uint32_t version_count = 0;  // reported versions
  std::vector<HolderId> reporters;
};

// The states of a reported version:
//
//   state         when                              next state
//   incomplete    some chunks are not reported      whole or conflict, by Add
//   whole         all chunks are, and agree         conflict by Add; taken by TakeWhole
//   conflict      two reports contradict            none
//   taken         its owner publishes or refuses    as before, with the reason of the refusal
//
// Forget removes a version in any state. Not thread-safe: its owner's lock guards it.
class CorpusRebuild {
 public:
  using Key = std::pair<std::string, std::string>;  // tenant, name

  // The limit of versions of one corpus. A holder that was unreachable has an earlier one; few
  // report others.
  static constexpr size_t kVersionCountMax = 8;

  CorpusRebuild(uint64_t chunk_count_max, size_t corpus_count_max)
      : chunk_count_max_(chunk_count_max), corpus_count_max_(corpus_count_max) {}

  // Adds the part that `reporter` reports. The same report again changes nothing. If a report
  // contradicts an earlier one, both are kept.
  //   InvalidArgument     the part is not valid, or has a chunk that is not placed on the reporter.
  //   ResourceExhausted   there are chunk_count_max chunks, corpus_count_max corpora, or
  //                       kVersionCountMax versions of it.
  absl::Status Add(const HolderId& reporter, const CorpusPart& part);
  // Returns a corpus that is whole and has not been taken yet, or nothing.
  std::optional<Corpus> TakeWhole();
  // Removes the versions of the corpus up to `version`. If `folder_id` is not 0, removes only
  // `version` itself and those that a directory with this folder placed.
  void Remove(const Key& key, uint64_t version, uint64_t folder_id);
  // Stores the reason why the corpus, which is whole, is not served.
  void NoteRefusal(const Key& key, std::string why);
  // Removes everything.
  void Clear();
  // Returns true if a directory with this folder placed the highest reported version.
  bool IsReported(const Key& key, uint64_t folder_id) const;
  // Returns the highest version that a directory with this folder placed, or 0 if there is none. If
  // `folder_id` is 0, any folder counts.
  uint64_t HighestOf(const Key& key, uint64_t folder_id) const;

  // Returns the state of the corpus if it was reported and not removed.
  std::optional<UnprovenCorpus> Find(const Key& key) const;
  // Returns the first `count_max` corpora in the order of keys.
  std::vector<UnprovenCorpus> List(size_t count_max) const;
  size_t count() const { return corpora_.size(); }
  // Returns how often reported corpora contain the chunk.
  uint32_t CountOf(const ChunkId& id) const;

 private:
  struct Version {
    Geometry geometry;
    uint32_t chunk_count = 0;
    uint32_t replica_count = 0;                      // as in Corpus
    CorpusPolicy policy;                             // as in Corpus
    std::map<uint32_t, ChunkPlacement> chunks;       // by ordinal
    std::multimap<uint32_t, ChunkPlacement> others;  // those that contradict `chunks`
    std::set<HolderId> reporters;
    std::set<uint64_t> folder_ids;
    bool conflict = false;
    std::string why;

    bool IsWhole() const { return !conflict && chunks.size() == chunk_count; }
  };
  using Versions = std::map<uint64_t, Version>;

  absl::Status CheckRoom(const Key& key, const CorpusPart& part) const;
  void AddChunk(const HolderId& reporter, uint32_t ordinal, const ChunkPlacement& chunk,
                Version& version);
  static void NoteConflict(const HolderId& reporter, std::string_view what, Version& version);
  void Count(const ChunkPlacement& chunk, bool in);
  void Drop(const Version& version);
  static UnprovenCorpus Describe(const Key& key, const Versions& versions);

  const uint64_t chunk_count_max_;
  const size_t corpus_count_max_;
  uint64_t chunk_count_ = 0;
  std::map<Key, Versions> corpora_;
  absl::flat_hash_map<ChunkId, uint32_t> counts_;
  absl::btree_set<Key> whole_;  // corpora whose highest version may be whole
};

}  // namespace ckv
