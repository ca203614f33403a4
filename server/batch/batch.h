// One batch of attend requests (and probes): judged, computed together, answered.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "proto/clock.h"
#include "server/lease_gate.h"
#include "server/ready_request.h"
#include "server/serve_counters.h"
#include "server/session.h"
#include "store/chunk_table.h"
#include "store/shadow_table.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

// Pieces of one batch: four of the largest requests, or 64 requests of 64 chunks.
inline constexpr uint32_t kBatchPieceCountMax = 4 * kPieceCountMax;

// f32 partials of the pieces that this holder merges itself. One is at most 4096 rows x (1024 + 2)
// x 4 B = 16.8 MB, so seven of the largest fit; four are needed (MergeInRounds). Address space:
// pages are touched as requests need them.
inline constexpr size_t kMergeScratchBytes = size_t{128} << 20;

// Multiply-adds of one request: its rows x (d_qk + d_v) x the tokens of its chunks, or the indices
// of a selection, skipped ones included. A row of 2 x d_qk bytes costs at most 2 x d_qk of them a
// token, so a frame of the default lane costs at most one a byte and token: 320 KiB (284 rows of
// 576) over 1 M tokens pass, 3.4e11, which take seconds. A wider lane must ask in parts.
inline constexpr uint64_t kRequestWorkMax = uint64_t{LaneShape{}.request_bytes_max} << 20;

// Multiply-adds of one batch of the polling thread, which nobody else is served beside: 256 rows of
// 1088 over 1900 tokens, 7 ms of one core at 75 G/s. A request of more leaves that thread.
inline constexpr uint64_t kPollingWorkMax = uint64_t{1} << 29;

struct BatchOptions {
  uint32_t request_count_max = 64;
  uint32_t thread_count = 1;
  // Of all requests of a batch together; one that is larger by itself is not taken.
  uint64_t work_max = kPollingWorkMax;
  // For requests that allow an approximation; null: there are none.
  const ShadowTable* shadows = nullptr;
};

// Belongs to one thread at a time. Nothing is allocated after construction but the text of errors,
// and the piece list up to its limit.
class Batch {
 public:
  // Everything borrowed must outlive the batch.
  Batch(const BatchOptions& options, Clock* clock, ChunkTable* table, const LeaseGate* lease,
        ServeCounters* counters);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  enum class Verdict {
    kTaken,      // it will be answered, with a result or an error
    kFull,       // nothing was done; ask again with the next batch. Never of an empty batch
    kLong,       // nothing was done: over work_max by itself
    kCold,       // nothing was done: rows that it asks for are on disk
    kMalformed,  // not taken: malformed() says why, and its lane is to be closed
  };
  // Judges the request: form, session, lease and epoch (I4), deadline, then what it asks for; only
  // then touches and pins data.
  Verdict Add(const ReadyRequest& ready);
  const absl::Status& malformed() const { return malformed_; }

  uint32_t size() const { return item_count_; }
  // Multiply-adds of what Add took last, and of the whole batch.
  uint64_t last_work() const { return last_work_; }
  uint64_t work() const { return work_; }

  // Computes every piece in one kernel call a geometry, and merges. May run on another thread than
  // Add and Reply, which wait for it. Once `stop` is true what is left of a long request is not
  // computed, and its answer means nothing.
  void Compute(const std::atomic<bool>* stop = nullptr);
  // Posts the replies in the order of Add. `waiting_count` requests stay behind. The batch is empty
  // afterwards.
  void Reply(uint32_t waiting_count);
  // Of the last Compute.
  Duration elapsed() const { return elapsed_; }
  // Every request is forgotten, unanswered: their lanes go.
  void Clear();

 private:
  static constexpr size_t kNoGroup = SIZE_MAX;
  struct Item {
    ReadyRequest ready;
    ReplyHeader reply;
    // Of an attend request, in groups_: of its pieces with exact rows, and of those with shadows.
    size_t group = 0;
    size_t shadow_group = kNoGroup;
    absl::Status error;  // not OK: the reply is this
  };
  // Pieces whose geometries attend alike.
  struct Group {
    AttentionShape shape;
    Instant deadline;  // the latest of its requests
    std::vector<AttentionPiece> pieces;
  };
  struct MergeTask {
    size_t group = 0;  // as the item's
    size_t shadow_group = kNoGroup;
    size_t part_begin = 0;  // in parts_
    size_t part_count = 0;
    uint32_t row_count = 0;
    uint32_t d_v = 0;
    PartialView out;
  };

  static constexpr size_t kScratchFloats = kMergeScratchBytes / sizeof(float);
  struct PieceRows {
    RowView rows;
    bool shadow = false;
  };
  // Floats of one f32 partial in the scratch, in whole cache lines.
  static constexpr size_t PartialFloats(uint32_t row_count, uint32_t d_v) {
    return (size_t{row_count} * (size_t{d_v} + 2) + 15) / 16 * 16;
  }

  bool HasRoom(const RequestHeader& header, const Geometry& geometry) const;
  Verdict Judge(Item& item);
  void AddProbe(Item& item);
  absl::Status AddAttend(Item& item, Verdict& verdict);
  absl::Status CheckLimits(const Item& item) const;
  absl::Status CheckNoHandleTwice();
  // Of the request being judged: pins its chunks and fills rows_. Unavailable: some are cold.
  absl::Status FindRows(const Item& item);
  absl::StatusOr<PieceRows> RowsOf(const Item& item, uint32_t handle);
  std::optional<PieceRows> ShadowOf(const Item& item, ChunkLocator chunk);
  bool InRounds(const RequestHeader& header, const Geometry& geometry) const;
  uint64_t WorkOf(const Item& item) const;
  AttentionPiece MakePiece(const Item& item, size_t piece) const;
  void PlacePieces(Item& item);
  // Its place in groups_; `deadline` is of a request that has pieces in it.
  size_t GroupFor(const AttentionShape& shape, Instant deadline);
  PartialView TakeScratch(uint32_t row_count, uint32_t d_v);
  void Attend(const Group& group, std::span<const AttentionPiece> pieces);
  void AttendSliced(const AttentionShape& shape, const AttentionPiece& piece, Instant deadline);
  bool GivenUp(Instant deadline) const;
  bool is_long() const { return work_ > kPollingWorkMax; }
  // Every request of the group has run out of time, while others were computed: they are answered
  // so, and the group is not (or no further) computed.
  bool Expired(size_t group);
  void MergeInRounds();
  void Post(Item& item, uint32_t behind_count);

  const BatchOptions options_;
  Clock* const clock_;
  ChunkTable* const table_;
  const LeaseGate* const lease_;
  ServeCounters* const counters_;
  WorkerPool pool_;

  std::vector<Item> items_;  // fixed size; the first item_count_ are in use
  uint32_t item_count_ = 0;
  absl::Status malformed_;
  uint64_t last_work_ = 0;
  uint64_t work_ = 0;
  Instant started_;  // the last Compute
  Duration elapsed_{0};
  // Of the batch; counted by Reply, on the dispatcher's thread.
  uint64_t kernel_calls_ = 0;
  uint64_t expired_ = 0;
  const std::atomic<bool>* stop_ = nullptr;

  AttendRequest attend_;           // of the request being judged
  std::vector<uint32_t> handles_;  // of it, sorted
  std::vector<PieceRows> rows_;    // of it, one a piece
  // Of the batch, one a piece; neither where the request's cold_rows hold the rows.
  std::vector<ChunkPin> pins_;
  std::vector<std::shared_ptr<const Shadow>> shadows_;  // of the batch
  std::vector<Group> groups_;                           // the first group_count_ are in use
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
