// Pulls the rows of chunks: a window of requests in flight, delivered in order.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/attend_plan.h"
#include "client/route.h"

namespace ckv {

// Part of an engine: borrows its router's links. Belongs to one thread at a time.
class Fetcher {
 public:
  using Sink = absl::FunctionRef<absl::Status(const FetchedRows&)>;

  Fetcher(const LinkOptions* options, Router* router, RouteCounters* counters);

  // Requester::Fetch, without its retry. `*stale` as in Router::Attend; it is false once `sink` has
  // been called.
  absl::Status Fetch(const FetchCall& call, Sink sink, bool* stale);
  // Whether `sink` has been called in the last one: it cannot be begun again then.
  bool delivered() const { return delivered_; }

 private:
  // A run of rows that one reply carries: whole layers of a chunk, or some tokens of one layer.
  struct Segment {
    HolderLink* link = nullptr;
    uint32_t chunk = 0;
    uint32_t handle = 0;
    uint32_t layer_begin = 0, layer_count = 0;
    uint32_t token_begin = 0, token_count = 0;
    uint32_t slot = 0;
    uint64_t request_id = 0;
    std::span<const std::byte> reply;  // empty: not there yet
  };

  absl::Status Check(const FetchCall& call) const;
  absl::Status Prepare(const FetchCall& call, bool* stale);
  absl::Status Exchange(const FetchCall& call, Sink sink, bool* stale);
  bool NextSegment(const FetchCall& call, Segment* segment);
  absl::StatusOr<bool> PostNext(const FetchCall& call);
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
  std::vector<HolderLink*> link_of_chunk_;  // from chunk_begin; null: no tokens
  std::vector<uint32_t> handle_of_chunk_;
  std::vector<int64_t> delta_of_chunk_;
  std::vector<HolderLink*> links_;  // distinct
  std::vector<RequestLane*> waiting_;
  std::vector<Segment> window_;  // a ring: half of the slots of a lane
  size_t head_ = 0, in_window_ = 0;
  uint32_t next_chunk_ = 0, next_layer_ = 0, next_token_ = 0;
  bool delivered_ = false;
  bool strange_ = false;  // a reply came that was not the one awaited in its slot
  std::vector<Completion> completions_;
  std::vector<std::byte> rotated_;
  RotationCache rotations_;
};

}  // namespace ckv
