// Pulls the rows of chunks: a window of requests in flight, delivered in order.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/attend_plan.h"
#include "client/fetch_plan.h"
#include "client/route.h"
#include "transport/scatter_list.h"
#include "transport/wire.h"

namespace ckv {

// Part of an engine: borrows its router's links. Belongs to one thread at a time.
class Fetcher {
 public:
  using Sink = absl::FunctionRef<absl::Status(const FetchedRows&)>;
  using SelectionSink = absl::FunctionRef<absl::Status(const SelectedRows&)>;
  using Place = absl::FunctionRef<std::span<std::byte>(const RowRun&)>;
  using Pieces = absl::FunctionRef<ScatterList(const RowRun&)>;

  Fetcher(const LinkOptions* options, Router* router, RouteCounters* counters);

  // Requester::Fetch, without its retry; `place` may be null. `*stale` as in Router::Attend; it is
  // false once `sink` has been called.
  absl::Status Fetch(const FetchCall& call, const Place* place, Sink sink, bool* stale);
  // Whether `sink` has been called in the last one: it cannot be begun again then.
  bool delivered() const { return delivered_; }

  // The same from `from` on, for a caller who knows how to go on where it ended: `*stale` is told
  // whatever was shown. `pieces` is where the fabric may put rows of one layer itself, none for
  // nowhere. A run that it put there is shown with no rows; one that it did not, where it came, so
  // that its one copy is the sink's. The call is at canonical positions.
  absl::Status FetchOn(const FetchCall& call, const FetchFrom& from, Pieces pieces, Sink sink,
                       bool* stale);

  // Requester::FetchSelection, without its retry; `*stale` as of Fetch.
  absl::Status FetchSelection(const SelectionCall& call, SelectionSink sink, bool* stale);

 private:
  // The rows that one reply carries: whole layers of a chunk, or some tokens of one layer.
  struct Segment {
    HolderLink* link = nullptr;
    uint32_t chunk = 0;
    FetchEntry entry;
    std::span<const uint32_t> ordinals;  // of chosen rows
    uint32_t slot = 0;
    uint64_t request_id = 0;
    // Where the caller wants the rows, if anywhere; only of one layer.
    ScatterList pieces;
    bool came = false;
    bool landed = false;              // the fabric put them there
    std::span<const std::byte> body;  // in the slot; unless landed
  };

  absl::Status Begin(const FetchCall& call, bool* stale);
  absl::Status Run(const FetchCall& call, Sink sink, bool* stale);
  absl::Status Check(const FetchCall& call) const;
  absl::Status Prepare(const FetchCall& call, bool* stale);
  absl::Status Exchange(const FetchCall& call, Sink sink, bool* stale);
  absl::StatusOr<bool> PostNext(const FetchCall& call);
  absl::Status Land(const FetchCall& call, Segment& segment, RequestLane& lane);
  absl::StatusOr<std::span<std::byte>> PlaceOf(const RowRun& run, size_t bytes) const;
  absl::Status Show(const FetchCall& call, const Segment& segment, Sink sink);
  absl::Status Accept(const FetchCall& call, Segment& segment, const ReplyHeader& header,
                      std::span<const std::byte> reply);
  absl::StatusOr<bool> Collect(const FetchCall& call, HolderLink& link, bool* stale);
  absl::Status Deliver(const FetchCall& call, Sink sink);
  std::string DescribeWaiting();
  void AbandonAll();
  Segment& at(size_t i) { return window_[(head_ + i) % window_.size()]; }

  Clock* const clock_;
  const LaneShape shape_;
  Router* const router_;
  RouteCounters* const counters_;

  // Of the call in progress.
  FetchPlan plan_;
  const Place* place_ = nullptr;  // one of the two, or none
  const Pieces* pieces_ = nullptr;
  const SelectionSink* selection_sink_ = nullptr;
  std::vector<HolderLink*> link_of_chunk_;  // from chunk_begin; null: no tokens
  std::vector<uint32_t> handle_of_chunk_;
  std::vector<int64_t> delta_of_chunk_;
  std::vector<HolderLink*> links_;  // distinct
  std::vector<RequestLane*> waiting_;
  std::vector<Segment> window_;  // a ring: half of the slots of a lane
  size_t head_ = 0, in_window_ = 0;
  bool delivered_ = false;
  bool strange_ = false;  // a reply came that was not the one awaited in its slot
  std::vector<Completion> completions_;
  std::vector<std::byte> rotated_;
  RotationCache rotations_;
};

}  // namespace ckv
