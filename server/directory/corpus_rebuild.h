// Corpora that holders report and that the directory does not know: what is said of them, and which
// are whole.
//
// A directory that lost its disk, or was restored from an old copy, learns from its holders what
// was placed on them. One version of a corpus is whole if each of its chunks was reported by a
// holder that has it, and all reports agree. Only the highest version that anybody reports counts:
// a lower one is from a holder that was away when the corpus changed. A corpus that is not whole is
// told of and never served. It is part of the directory's state.

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
  uint64_t version = 0;  // the highest that is reported
  uint32_t chunk_count = 0;
  uint32_t missing_count = 0;  // chunks that no holder has reported
  bool conflict = false;       // two holders say different things of this version
  std::string why;             // says what contradicts, or why it is whole and not served
  uint32_t version_count = 0;  // that are reported
  std::vector<HolderId> reporters;
};

// Not thread-safe: its owner's lock guards it.
class CorpusRebuild {
 public:
  using Key = std::pair<std::string, std::string>;  // tenant, name

  // Versions of one corpus: a holder that was away knows an earlier one, and few know others.
  static constexpr size_t kVersionCountMax = 8;

  CorpusRebuild(uint64_t chunk_count_max, size_t corpus_count_max)
      : chunk_count_max_(chunk_count_max), corpus_count_max_(corpus_count_max) {}

  // Adds what `reporter` says; the same again changes nothing. A contradiction of an earlier report
  // is kept beside it.
  //   InvalidArgument     the part is not valid, or has a chunk that is not placed on the reporter.
  //   ResourceExhausted   there are chunk_count_max chunks, corpus_count_max corpora, or
  //                       kVersionCountMax versions of it.
  absl::Status Add(const HolderId& reporter, const CorpusPart& part);
  // Returns a corpus that is whole and not yet taken, or nothing.
  std::optional<Corpus> TakeWhole();
  // Forgets the versions of the corpus up to `version`. If `folder_id` is not 0, these are only the
  // ones that a directory with this folder told of, and `version` itself.
  void Forget(const Key& key, uint64_t version, uint64_t folder_id);
  // Keeps why the corpus, which is whole, is not served.
  void NoteRefusal(const Key& key, std::string why);
  // Returns true if a directory with this folder told of the highest version that is reported.
  bool IsTold(const Key& key, uint64_t folder_id) const;
  // Returns the highest version that a directory with this folder told of, or 0. If `folder_id` is
  // 0, any folder counts.
  uint64_t HighestOf(const Key& key, uint64_t folder_id) const;

  // Returns what is known of the corpus, if it is reported and not forgotten.
  std::optional<UnprovenCorpus> Find(const Key& key) const;
  // Returns the first `count_max` corpora in the order of keys.
  std::vector<UnprovenCorpus> List(size_t count_max) const;
  size_t count() const { return corpora_.size(); }
  // Counts how often reported corpora have the chunk.
  uint32_t CountOf(const ChunkId& id) const;

 private:
  struct Version {
    Geometry geometry;
    uint32_t chunk_count = 0;
    std::map<uint32_t, ChunkPlacement> chunks;       // by ordinal
    std::multimap<uint32_t, ChunkPlacement> others;  // that contradict `chunks`
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
  absl::btree_set<Key> whole_;  // whose highest version may be whole
};

}  // namespace ckv
