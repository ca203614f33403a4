// Plans which holder copies which chunk, so that each corpus has the copies that it wants.
//
// A pure function of a snapshot: no lock, no I/O, no time. The same snapshot has the same plan, so
// a copy that is being made is planned again on the same holder.
//
//   a holder of a chunk     counts as a copy    is a source    leaves the corpus
//   live, has the chunk     yes                 yes            no
//   live, lacks the chunk   no                  no             if there are enough copies elsewhere
//   offline for a while     yes                 no             no
//   lost                    no                  no             once there are enough copies
//   drained                 no                  yes            once there are enough copies
//
// If nothing is missing, new holders take their share (share_plan.h).

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "proto/corpus.h"
#include "server/directory/coverage/coverage.h"
#include "server/directory/tables/corpus_key.h"

namespace ckv {

// A live holder.
struct CopyHolder {
  HolderId id;
  FailureDomain domain = {};
  uint64_t capacity_bytes = 0;    // its weight in the choice of a target
  uint64_t room_bytes = 0;        // space for more rows
  uint64_t bytes_per_second = 0;  // how fast it makes copies; 0 if unknown
  bool is_draining = false;
  bool is_durable = false;  // it keeps chunks on a disk
};

// Holders by corpus and chunk.
using HoldersByChunk = absl::flat_hash_map<ChunkId, std::vector<HolderId>>;
using CopiesByCorpus = std::map<CorpusKey, HoldersByChunk>;

// A snapshot of the directory.
struct CopyPlanView {
  std::vector<CopyHolder> live;
  // Holders without a lease that are expected back.
  absl::flat_hash_set<HolderId> away;
  CoverageView::Lacking lacking;
  std::vector<std::shared_ptr<const Corpus>> corpora;
  // New holders, which take their share of the chunks (share_plan.h).
  absl::flat_hash_set<HolderId> filling;
  // Copies that live holders have made, and that no corpus lists yet.
  CopiesByCorpus made;
  // Leased copies, for the corpora that have any. They are sources, and do not count as copies.
  CopiesByCorpus leased;
  // Copies that holders could not make a moment ago. They are not planned on these holders.
  CopiesByCorpus failed;
};

struct PlannedCopy {
  HolderId to;
  std::shared_ptr<const Corpus> corpus;
  uint32_t ordinal = 0;
  std::vector<HolderId> sources;  // live holders that have the chunk, at least one
  bool is_leased = false;         // corpora list it as leased, once it is made (hot_plan.h)
};

// Copies that are wanted and cannot be planned.
struct StuckCopies {
  uint64_t count = 0;
  std::string why;  // for the first of them
};

struct CopyPlan {
  // The limit of planned copies. Those beyond it are counted, and planned once others are made.
  static constexpr size_t kCopyCountMax = size_t{1} << 16;

  // Chunks with the fewest live copies first.
  std::vector<PlannedCopy> copies;
  uint64_t under_replicated_count = 0;  // chunks with fewer live copies than wanted
  uint64_t bytes_left = 0;              // bytes of all copies that are to be made
  StuckCopies stuck;
  struct OfHolder {
    uint64_t bytes = 0;          // that it is to receive
    uint64_t leaving_count = 0;  // places of a drained holder that wait for a copy
    uint64_t leaving_bytes = 0;
    StuckCopies stuck;  // those of `leaving_count` that cannot be planned
  };
  std::map<HolderId, OfHolder> holders;
  struct OfCorpus {
    bool is_changeable = false;  // PlaceMade changes it now
    uint64_t waiting_count = 0;  // copies that it still waits for
  };
  std::map<CorpusKey, OfCorpus> corpora;  // those to which either applies
  // Moves are planned only if no other copy is.
  bool has_shares = false;
  absl::flat_hash_set<HolderId> moving;  // the holders of `filling` that still take chunks
  // The holder of a chunk that a made copy replaces, although it has the chunk.
  std::map<CorpusKey, absl::flat_hash_map<ChunkId, HolderId>> replaced;
};

CopyPlan PlanCopies(const CopyPlanView& view);

// `plan` is that of the view. Returns the corpus with the holders that made copies, and without
// those that it can do without. Returns nothing if that changes no chunk. Holders that stay keep
// their order.
std::optional<Corpus> PlaceMade(const CopyPlanView& view, const CopyPlan& plan,
                                const Corpus& corpus);

// Returns the bytes that a chunk takes in a holder's store.
uint64_t CopyBytesOf(const Geometry& geometry, const ChunkPlacement& chunk);

}  // namespace ckv
