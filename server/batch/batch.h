// One batch of attend requests (and probes): checks them, computes them together and replies.
//
//   while (batch.Add(next request) == Batch::Verdict::kTaken) {}
//   batch.Compute();
//   batch.Reply(waiting_count);  // and the batch is empty
//
// Add checks a request, pins its rows and adds its pieces to a BatchPlan. ComputePlan computes that
// plan.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "server/batch/batch_compute.h"
#include "server/batch/batch_plan.h"
#include "server/batch/ready_request.h"
#include "server/batch/stripe_cache.h"
#include "server/score/candidate_table.h"
#include "server/score/chosen_rows.h"
#include "server/session/lease_gate.h"
#include "server/session/serve_counters.h"
#include "server/session/session.h"
#include "store/memory/chunk_table.h"
#include "store/memory/shadow_table.h"
#include "transport/fabric.h"
#include "transport/thread_role.h"
#include "transport/wire_attend.h"

namespace ckv {

// The limit of multiply-adds of one request. A request costs its rows x (d_qk + d_v) x the tokens
// of its chunks. For a selection, its number of indices replaces the tokens, skipped indices
// included.
//
// A row of 2 x d_qk bytes costs at most 2 x d_qk multiply-adds per token. So a frame of the default
// lane costs at most one per byte and token. Its 320 KiB (284 rows of 576) over 1 M tokens are
// within the limit: 3.4e11, which take seconds. A requester with a wider lane must split its calls.
inline constexpr uint64_t kRequestWorkMax = uint64_t{LaneShape{}.request_bytes_max} << 20;

struct BatchOptions {
  uint32_t request_count_max;
  // The limit of multiply-adds of all requests together. A request that exceeds it alone is not
  // taken.
  uint64_t work_max = kPollingWorkMax;
  // Packed copies of evicted chunks, for requests that allow an approximation. Null if there are
  // none.
  const ShadowTable* shadows = nullptr;
  // Stripes of chunks on disk, for requests that select rows. Null if there are none.
  StripeCache* stripes = nullptr;
  // The kind of memory of the rows of chunks and shadows, and of rows read from disk for a request
  // (ColdRows). Stripes are in host memory, so `stripes` keeps none unless this is kHost.
  MemoryKind chunk_memory = MemoryKind::kHost;
  // The candidates that requests may choose rows from. Null if there are none.
  const CandidateTable* candidates = nullptr;
  SpanSink* spans = nullptr;  // receives the spans of requests whose trace is sampled; may be null
};

// Belongs to one thread, except Compute; debug builds check that. After construction, only the text
// of errors is allocated.
class Batch {
 public:
  // Everything borrowed must outlive the batch, including the tools' backend.
  Batch(const BatchOptions& options, BatchTools tools, Clock* clock, const ChunkTable* table,
        const LeaseGate* lease, ServeCounters* counters);

  enum class Verdict {
    kTaken,      // the batch will reply to the request, with a result or an error
    kFull,       // nothing was done: add it to the next batch. Never returned by an empty batch
    kLong,       // nothing was done: the request alone exceeds work_max
    kCold,       // nothing was done: the request needs rows that are on disk
    kMalformed,  // nothing was done: see malformed(), and close the request's lane
  };
  // Checks the request's session, lease and epoch (I4), then its deadline, its form and its limits.
  // Only then reads and pins data.
  Verdict Add(const ReadyRequest& ready);
  // Why the last request was kMalformed.
  const absl::Status& malformed() const { return malformed_; }

  // Number of requests taken.
  uint32_t size() const { return item_count_; }
  // Multiply-adds of the last request given to Add (0 unless it was taken), and of all that were
  // taken.
  uint64_t last_work() const { return last_work_; }
  uint64_t work() const { return plan_.work(); }

  // Computes all requests together; see ComputePlan for `stop`. May run on another thread; the
  // owner's thread must then wait for it before it calls anything else.
  void Compute(const std::atomic<bool>* stop = nullptr) {
    computed_ = ComputePlan(plan_, *stream_, clock_, stop);
  }
  // How long the last Compute took.
  Duration elapsed() const { return computed_.elapsed; }
  // Posts the replies in the order of Add and empties the batch. Call after Compute.
  // `waiting_count` requests are queued behind the batch. If the backend failed, attends are
  // answered with Unavailable, so that their requesters try other holders.
  void Reply(uint32_t waiting_count);
  // Drops every request without a reply, for lanes that break.
  void Clear();

 private:
  struct Item {
    ReadyRequest ready;
    ReplyHeader reply;
    BatchPlan::Groups groups;  // the groups of an attend request's pieces
    ChosenRows chosen;
    uint64_t work = 0;   // multiply-adds of the request
    absl::Status error;  // if not OK, the reply is this error
  };
  struct PieceRows {
    RowView rows;
    bool shadow = false;
  };

  Verdict Judge(Item& item);
  absl::Status AddAttend(Item& item, Verdict& verdict);
  absl::Status FindChosen(Item& item);
  absl::Status CheckLimits(const Item& item) const;
  absl::Status CheckNoHandleTwice();
  // Pins the chunks of the request being checked and fills pieces_. Unavailable: some are cold.
  absl::Status FindPieces(const Item& item);
  absl::StatusOr<PieceRows> RowsOf(const Item& item, const AttendSegment& segment,
                                   const PieceEntry& entry);
  std::optional<PieceRows> StripesOf(const Item& item, const AttendSegment& segment,
                                     const PieceEntry& entry, ChunkLocator chunk);
  std::optional<PieceRows> ShadowOf(const Item& item, ChunkLocator chunk);
  uint64_t WorkOf(const Item& item) const;
  AttentionPiece MakePiece(const Item& item, const AttendSegment& segment, const PieceEntry& entry,
                           const RowView& rows) const;
  // The result of an attend request that was taken without an error.
  absl::Status ResultOf(const Item& item) const;
  void Post(Item& item, uint32_t behind_count);

  ThreadRole role_;
  const BatchOptions options_;
  Clock* const clock_;
  const ChunkTable* const table_;
  const LeaseGate* const lease_;
  ServeCounters* const counters_;
  const std::unique_ptr<ComputeStream> stream_;
  const KernelTargetId kernel_target_;
  BatchPlan plan_;
  BatchComputed computed_;  // the last Compute's result
  bool failing_ = false;    // the last batch was not computed; logged once, when this becomes true

  std::vector<Item> items_;  // has a fixed size; the first item_count_ are in use
  uint32_t item_count_ = 0;
  absl::Status malformed_;
  uint64_t last_work_ = 0;

  // The request being checked: its body, its sorted handles, its pieces.
  AttendRequest attend_;
  bool in_rounds_ = false;  // BatchPlan::InRounds of this request
  std::vector<uint32_t> handles_;
  std::vector<BatchPlan::Piece> pieces_;
  uint64_t stripe_hit_count_ = 0;  // stripes of this request found in the cache

  // These keep the rows of the batch in memory, in addition to each request's cold_rows.
  std::vector<ChunkPin> pins_;
  std::vector<std::shared_ptr<const Shadow>> shadows_;
  std::vector<StripeCache::Hold> holds_;
};

}  // namespace ckv
