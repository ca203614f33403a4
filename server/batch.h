// One batch of requests: judged, computed together, answered. The holder's whole data plane but for
// the waiting.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "proto/clock.h"
#include "server/lease_gate.h"
#include "server/session.h"
#include "store/chunk_table.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

// Written by the dispatcher, read by anyone; each stands alone.
struct ServeCounters {
  std::atomic<uint64_t> request_count{0};  // frames that came: probes, too
  std::atomic<uint64_t> query_row_count{0};
  std::atomic<uint64_t> batch_count{0};
  std::atomic<uint64_t> error_count{0};
  std::atomic<uint64_t> expired_count{0};
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> bytes_out{0};
  std::atomic<uint64_t> compute_ns{0};
  std::atomic<uint32_t> lane_count{0};
};

// A request that has arrived and waits. Its slot is the holder's until the reply is posted.
struct ReadyRequest {
  ServeLane* lane = nullptr;
  Session* session = nullptr;
  uint32_t slot = 0;
  uint32_t bytes = 0;
  Instant arrived;       // when the dispatcher saw it
  bool refused = false;  // arrived after the drain began
};

// Pieces of one batch: four of the largest requests, or 64 requests of 64 chunks.
inline constexpr uint32_t kBatchPieceCountMax = 4 * kPieceCountMax;

// f32 partials of the pieces that this holder merges itself. One is at most 4096 rows x (1024 + 2)
// x 4 B = 16.8 MB, so seven of the largest fit; four are needed (MergeInRounds). Address space:
// pages are touched as requests need them.
inline constexpr size_t kMergeScratchBytes = size_t{128} << 20;

// Multiply-adds of one request: its rows x (d_qk + d_v) x the tokens of its chunks, or the indices
// of a selection, skipped ones included. A row of 2 x d_qk bytes costs at most 2 x d_qk of them a
// token, so a frame of the default lane costs at most one a byte and token: 320 KiB (284 rows of
// 576) over 1 M tokens pass, 3.4e11, which take seconds. A wider lane must ask in parts: one peer's
// request keeps every other's waiting.
inline constexpr uint64_t kRequestWorkMax = uint64_t{LaneShape{}.request_bytes_max} << 20;

// Belongs to one thread. Nothing is allocated after construction but the text of errors, and the
// piece list up to its limit.
class Batch {
 public:
  // Everything borrowed must outlive the batch.
  Batch(uint32_t request_count_max, uint32_t thread_count, Clock* clock, ChunkTable* table,
        const LeaseGate* lease, ServeCounters* counters);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  enum class Verdict {
    kTaken,      // it will be answered, with a result or an error
    kFull,       // nothing was done; ask again with the next batch. Never of an empty batch
    kMalformed,  // not taken: malformed() says why, and its lane is to be closed
  };
  // Judges the request: form, session, lease and epoch (I4), deadline, then what it asks for; only
  // then touches and pins data.
  Verdict Add(const ReadyRequest& ready);
  const absl::Status& malformed() const { return malformed_; }

  uint32_t size() const { return item_count_; }

  // Computes every piece in one kernel call a geometry, merges, and posts the replies in the order
  // of Add. `waiting_count` requests stay behind. The batch is empty afterwards.
  void Answer(uint32_t waiting_count);

 private:
  struct Item {
    ReadyRequest ready;
    RequestHeader header;
    ReplyHeader reply;
    uint32_t reply_bytes = 0;
    size_t group = 0;    // of an attend request: in groups_
    absl::Status error;  // not OK: the reply is this
  };
  // Pieces whose geometries attend alike.
  struct Group {
    AttentionShape shape;
    Instant deadline;  // the latest of its requests
    std::vector<AttentionPiece> pieces;
  };
  struct MergeTask {
    size_t group = 0;
    size_t part_begin = 0;  // in parts_
    size_t part_count = 0;
    uint32_t row_count = 0;
    uint32_t d_v = 0;
    PartialView out;
  };

  bool HasRoom(const RequestHeader& header, const Geometry& geometry) const;
  absl::Status Admit(const Item& item, Instant now);
  absl::Status AddProbe(Item& item);
  absl::Status AddFetch(Item& item, const FetchEntry& entry);
  absl::Status AddAttend(Item& item);
  absl::Status CheckLimits(const Item& item) const;
  absl::Status CheckNoHandleTwice();
  absl::Status CheckWork(const Item& item, std::span<const ChunkPin> pins) const;
  absl::StatusOr<ChunkPin> Pin(const Session& session, uint32_t handle);
  AttentionPiece MakePiece(const Item& item, const PieceEntry& entry, const Chunk& chunk) const;
  void PlacePieces(Item& item, std::span<const ChunkPin> pins);
  Group& GroupFor(const AttentionShape& shape);
  PartialView TakeScratch(uint32_t row_count, uint32_t d_v);
  void Compute();
  // Every request of the group has run out of time, while others were computed: they are answered
  // so, and the group is not (or no further) computed.
  bool Expired(size_t group);
  void MergeInRounds();
  void Post(Item& item, uint32_t behind_count, uint64_t compute_ns, Instant started);
  void Clear();

  Clock* const clock_;
  ChunkTable* const table_;
  const LeaseGate* const lease_;
  ServeCounters* const counters_;
  WorkerPool pool_;

  std::vector<Item> items_;  // fixed size; the first item_count_ are in use
  uint32_t item_count_ = 0;
  absl::Status malformed_;

  AttendRequest attend_;           // of the request being judged
  std::vector<uint32_t> handles_;  // of it, sorted
  std::vector<ChunkPin> pins_;     // of the batch
  std::vector<Group> groups_;      // the first group_count_ are in use
  size_t group_count_ = 0;
  std::vector<ConstPartialView> parts_;
  std::vector<MergeTask> merges_;
  std::unique_ptr<float[]> scratch_;
  size_t scratch_used_ = 0;  // floats

  // A request whose partials do not fit the scratch at once: the only attend request of its batch.
  bool in_rounds_ = false;
  AttentionShape rounds_shape_;
  size_t rounds_group_ = 0;
  std::vector<AttentionPiece> rounds_pieces_;
  PartialView rounds_out_;
};

}  // namespace ckv
