// Reads rows from disk for requests that need them, on a separate thread, for one request at a
// time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/batch/cold_rows.h"
#include "server/batch/ready_request.h"
#include "server/batch/stripe_cache.h"
#include "server/dispatch/lane_set.h"
#include "server/dispatch/side_thread.h"
#include "server/score/candidate_table.h"
#include "server/score/chosen_rows.h"
#include "store/chunk_store.h"
#include "transport/thread_role.h"
#include "transport/wire_attend.h"
#include "transport/wire_score.h"

namespace ckv {

// For a request that selects rows, reads only the stripes that contain these rows, and keeps them
// in a StripeCache for later requests. Stripes in the cache are not read again. Once the bytes read
// from a chunk's rows exceed the size of the chunk, the chunk is read whole. So whatever requests
// follow, this reads at most twice as much as the best choice in hindsight.
//
// Belongs to the dispatcher's thread (debug builds check that); only the reading runs on a separate
// thread. Reading for the next request starts when the rows of the last one have been used. So in
// addition to the cache, memory holds one request's rows.
class ColdReads {
 public:
  // `store`, `stripes`, `buffer` and `candidates` must outlive this object. `buffer` receives the
  // rows that are read for one request alone. If a device reads the rows, give `buffer`, and
  // `stripes` that keep none. If `buffer` is empty, the rows are in host memory, up to
  // ColdRowBytesMax. `notify` is called on the reading thread when a read is done, and should wake
  // the dispatcher.
  ColdReads(ChunkStore* store, StripeCache* stripes, std::span<std::byte> buffer,
            const CandidateTable* candidates, absl::AnyInvocable<void()> notify);

  // Returns true if Start may be called: nothing is being read, and no copy of the last request is
  // left.
  bool idle() const { return thread_->idle() && held_.expired(); }
  bool reading() const { return !thread_->idle(); }
  bool finished() const { return thread_->finished(); }

  // Call while idle. Starts to read what the request needs; its lane is busy until Finish. A chunk
  // that the request attends whole, fetches or maps is loaded into memory with all layers. If there
  // is no room for it, only its layer is read for an attend. If rows of a chunk are selected, only
  // these rows of the layer are read (see above). If the cache has no room for them, they are read
  // for this request alone. If there is no room for that either, the chunk is loaded.
  //   InvalidArgument     the frame is malformed and gets no reply: close its lane.
  absl::Status Start(const ReadyRequest& ready, HolderLane& lane);

  // Call when finished() is true. If the lane is broken, discard the result. If the status is OK,
  // queue `ready` again, which now has the rows. Otherwise reply with the status.
  struct Done {
    ReadyRequest ready;
    HolderLane* lane = nullptr;
    absl::Status status;
    uint64_t stripe_hit_count = 0;   // stripes of selections found in the cache
    uint64_t stripe_read_count = 0;  // stripes of selections read from disk
  };
  Done Finish();

  // Waits for the read in progress and drops its result. Must be the last call.
  void End();

 private:
  // A chunk that a handle of the request refers to, and its requested rows.
  struct Wanted {
    ChunkLocator chunk;
    bool layer_is_enough = false;
    bool selected = false;
    std::span<const int32_t> indices;  // in the request's slot, or of chosen_
  };
  // All entries of one chunk: at least one.
  using Group = std::span<const Wanted>;

  absl::Status ListChunks(const ReadyRequest& ready);
  void Read();
  absl::Status ReadChunk(Group group, ColdRows& rows);
  absl::Status ReadLayer(ChunkLocator chunk, ColdRows& rows);
  absl::Status ReadSelected(Group group, ColdRows& rows);
  bool FindSelected(Group group, ColdRows& rows);
  absl::Status ReadStripes(ChunkLocator chunk, const ChunkRows& file, ColdRows& rows);
  // Counts `bytes` of selected rows. Returns false if the chunk should be read whole instead.
  bool TakeShare(ChunkLocator chunk, uint64_t bytes, uint64_t chunk_bytes);
  uint64_t& ShareOf(ChunkLocator chunk);

  ThreadRole role_;
  ChunkStore* const store_;
  StripeCache* const cache_;
  const std::span<std::byte> buffer_;
  const CandidateTable* const candidates_;
  AttendRequest attend_;
  ScoreRequest score_;
  ChosenRows chosen_;
  uint32_t tensor_ = 0;            // the tensor that the request in progress reads
  std::vector<Wanted> wanted_;     // chunks that the request in progress needs
  std::vector<uint32_t> stripes_;  // stripes that the request needs of one chunk
  uint64_t hit_count_ = 0;         // stripe_hit_count of the next Done
  uint64_t read_count_ = 0;        // stripe_read_count of the next Done
  // Bytes of selected rows read so far from a chunk that was not read whole.
  struct Share {
    uint32_t generation = 0;
    uint64_t bytes = 0;
  };
  absl::flat_hash_map<uint32_t, Share> shares_;  // by the chunk's slot
  absl::Status status_;
  std::optional<ReadyRequest> ready_;
  HolderLane* lane_ = nullptr;
  std::weak_ptr<const ColdRows> held_;  // the rows of the last request, while they are in use
  std::unique_ptr<SideThread> thread_;  // the last member: it uses the others
};

}  // namespace ckv
