// Fetches the rows of chunks: keeps a window of requests in flight and delivers replies in order.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "attention/backend.h"
#include "client/call/exchange.h"
#include "client/call/fetch_plan.h"
#include "client/call/rotation_cache.h"
#include "client/call/route.h"
#include "transport/scatter_list.h"
#include "transport/wire.h"

namespace ckv {

// Part of a call context. Borrows its links, exchange and stream. Belongs to one thread at a time.
class Fetcher {
 public:
  using Sink = absl::FunctionRef<absl::Status(const FetchedRows&)>;
  using SelectionSink = absl::FunctionRef<absl::Status(const SelectedRows&)>;
  using Place = absl::FunctionRef<std::span<std::byte>(const RowRun&)>;
  using SpansOf = absl::FunctionRef<ScatterList(const RowRun&)>;

  Fetcher(const LinkOptions* options, LinkTable* links, Exchange* exchange, ComputeStream* stream);

  // One attempt of Requester::Fetch. Skips the first `shown` parts. A call is divided into the same
  // parts for every holder, so an attempt continues where the last one ended. `place` may be null.
  absl::Status Fetch(const FetchCall& call, const Place* place, Sink sink, uint64_t shown);
  // Returns how many parts `sink` has received, over all attempts.
  uint64_t shown() const { return shown_; }

  // One attempt from `from` on, for a caller that tracks progress itself and accepts repeated rows.
  // `spans` returns the memory that the fabric may write a run to, or nothing. For a
  // run written there, `sink` receives no rows. For any other run it receives the rows in their
  // slot, and makes the only copy. call.position must be unset.
  absl::Status FetchOn(const FetchCall& call, const FetchFrom& from, SpansOf spans, Sink sink);

  // One attempt of Requester::FetchSelection. `shown` is as in Fetch.
  absl::Status FetchSelection(const SelectionCall& call, SelectionSink sink, uint64_t shown);

 private:
  // The rows of one reply: whole tensors of a chunk, or some tokens of one.
  struct Segment {
    uint32_t peer_index = 0;  // in the exchange
    uint32_t chunk = 0;
    FetchEntry entry;
    std::span<const uint32_t> ordinals;  // for rows chosen by index: as FetchPart::ordinals
    uint32_t slot = 0;
    // The caller's memory for the rows, if any. Only for rows of one tensor.
    ScatterList spans;
    bool came = false;
    bool landed = false;              // the fabric wrote the rows to `spans`
    std::span<const std::byte> body;  // in the slot; empty if landed
  };

  absl::Status Begin(const FetchCall& call, uint64_t shown);
  absl::Status Run(const FetchCall& call, Sink sink);
  absl::Status Check(const FetchCall& call) const;
  absl::Status Prepare(const FetchCall& call);
  absl::Status GoRound(const FetchCall& call, Sink sink);
  absl::StatusOr<bool> PostNext(const FetchCall& call);
  absl::Status Land(const FetchCall& call, Segment& segment, RequestLane& lane);
  absl::StatusOr<std::span<std::byte>> PlaceOf(const RowRun& run, size_t bytes) const;
  absl::Status Show(const FetchCall& call, const Segment& segment, Sink sink);
  absl::Status Rotate(const RopeRotation& rotation, const Geometry& geometry,
                      const FetchEntry& entry, const RowPlace& rows);
  absl::Status Accept(const FetchCall& call, const Exchange::Reply& reply);
  absl::Status Deliver(const FetchCall& call, Sink sink);
  Segment& at(size_t i) { return window_[(head_ + i) % window_.size()]; }

  Clock* const clock_;
  const LaneShape shape_;
  LinkTable* const table_;
  Exchange* const exchange_;
  ComputeStream& stream_;

  // The state of the call in progress.
  FetchPlan plan_;
  const Place* place_ = nullptr;  // at most one of place_ and spans_ is set
  const SpansOf* spans_ = nullptr;
  const SelectionSink* selection_sink_ = nullptr;
  std::vector<uint32_t> peer_of_chunk_;  // from chunk_begin on; set for requested chunks
  std::vector<uint32_t> handle_of_chunk_;
  std::vector<int64_t> delta_of_chunk_;
  std::vector<Segment> window_;  // a ring, half as long as a lane has slots
  size_t head_ = 0, in_window_ = 0;
  uint64_t shown_ = 0;
  BackendMemory rotated_;  // memory of the same kind as the slots of lanes
  RotationCache rotations_;
};

}  // namespace ckv
