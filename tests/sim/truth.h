// What a simulated fleet promised, and what it must therefore answer: the reference of a run.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/requester.h"
#include "tests/sim/network.h"
#include "tests/sim/node.h"
#include "tests/sim/sim_fabric.h"
#include "tests/support/test_corpus.h"

namespace ckv::sim {

// A corpus and all that it may become: each of its versions is a first part of its chunks.
struct KnownCorpus {
  std::string name, tenant;
  test::TestCorpus whole;
  std::set<size_t> lengths;  // in chunks: of the versions that were published, or may have been
  size_t submitted = 0;      // chunks of the longest version that a directory was to publish
  size_t acknowledged = 0;   // chunks of the last version whose publication was acknowledged
  bool drop_began = false;   // from then on it may be gone
  bool drop_acknowledged = false;
  // Places where a holder acknowledged a chunk, by ordinal: numbers of nodes.
  std::vector<std::set<uint32_t>> places;
  // The place whose file of the chunk has a flipped bit, by ordinal: a number of a node.
  std::map<size_t, uint32_t> flipped;
};

// One layer of one answer over the first chunks of a corpus.
struct Question {
  const KnownCorpus* corpus = nullptr;
  size_t chunk_count = 0;
  uint32_t layer = 0;
  uint32_t query = 0;
};

inline constexpr uint32_t kQueryCount = 4;  // different queries
inline constexpr uint32_t kQueryRows = 2;   // rows of each

// The first breach ends the run. Used by the thread that has the turn.
class Truth {
 public:
  explicit Truth(uint64_t seed);

  const Geometry& geometry() const { return geometry_; }
  const std::vector<uint16_t>& query(uint32_t query) const { return queries_[query]; }
  // Adds a corpus of this many chunks in all.
  KnownCorpus& Add(std::string tenant, size_t chunk_count);
  std::vector<std::unique_ptr<KnownCorpus>>& corpora() { return corpora_; }
  const KnownCorpus* Find(std::string_view name) const;

  // I1, I2: an answer that a requester got. The bits are those of the first answer to the question,
  // which is near the f64 reference.
  struct Rows {
    std::vector<float> o, m, l;
  };
  void CheckAnswer(const Question& question, const Rows& answer);
  // Reads by name: the corpus is one of its versions, and of the right tenant.
  void CheckCorpus(const Corpus& corpus, std::string_view tenant);
  // I3: a holder that has started has the chunks that it acknowledged, with their bytes.
  void CheckHolder(Life& life);
  // I3: no file that was not whole got a chunk's name: none is damaged but by a flipped bit.
  void CheckQuarantine(const Life& life, SimDisk& disk);
  // Drained holders: `holder` may go, so the chunks that it had are whole on others.
  void CheckDrained(DirectoryState& directory, const HolderId& holder);
  // I3: a directory that has started, or that begins to lead, has the corpora that were
  // acknowledged. What it has counts only if `counts` is true afterwards.
  void CheckDirectory(Life& life, absl::FunctionRef<bool()> counts);
  // A holder acknowledged a put.
  void NotePut(uint32_t holder, const ChunkId& id);
  // I3: each chunk that is new in this publication is whole on the holders that it lists.
  void CheckPublished(const Corpus& corpus, const std::vector<std::unique_ptr<Node>>& nodes);
  // I4: a holder answers only under its lease and in its epoch.
  void CheckReply(const ReplySent& sent, const Life& life);
  // I5: a call that began with this deadline has returned now.
  void CheckReturned(std::string_view call, const Life& life, int64_t deadline);

  void Breach(const std::string& text);
  bool failed() const { return !breach_.empty(); }
  const std::string& breach() const { return breach_; }
  uint64_t answer_count() const { return answer_count_; }

 private:
  void CheckChunk(Life& life, const KnownCorpus& corpus, size_t chunk);
  using Key = std::tuple<std::string, size_t, uint32_t, uint32_t>;
  Rows Reference(const Question& question, double& tolerance) const;

  const uint64_t seed_;
  const Geometry geometry_;
  std::vector<std::vector<uint16_t>> queries_;
  std::vector<std::unique_ptr<KnownCorpus>> corpora_;
  std::map<Key, Rows> answers_;
  uint64_t answer_count_ = 0;
  std::string breach_;
};

}  // namespace ckv::sim
