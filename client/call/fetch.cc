#include "client/fetch.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "client/retry.h"
#include "proto/status.h"
#include "transport/wire.h"

namespace ckv {
namespace {

constexpr size_t kCompletionCountMax = 16;

// Rows of bf16 are rotated where they lie.
bool Fits(std::span<const std::byte> place, size_t bytes) {
  return place.size() == bytes && reinterpret_cast<uintptr_t>(place.data()) % sizeof(uint16_t) == 0;
}

// Of columns that have all of the band, which is the last of either dtype's bytes, or nothing.
void Rotate(const RopeRotation& rotation, const Geometry& geometry, const FetchEntry& entry,
            std::span<std::byte> rows) {
  const uint32_t row_bytes = geometry.row_bytes();
  const auto width = static_cast<uint32_t>(entry.sent_row_bytes(row_bytes));
  if (rotation.is_identity() || entry.column_begin + width < row_bytes) return;
  RotateBandsFp8DsMla(rotation, rows.data(), entry.token_count, width, width);
}

}  // namespace

Fetcher::Fetcher(const LinkOptions* options, Router* router, RouteCounters* counters)
    : clock_(options->clock),
      shape_(options->shape),
      router_(router),
      counters_(counters),
      window_(std::max(1u, options->shape.slot_count / 2)),
      completions_(kCompletionCountMax) {}

absl::Status Fetcher::Fetch(const FetchCall& call, const Place* place, Sink sink, bool* stale) {
  place_ = place;
  pieces_ = nullptr;
  CKV_RETURN_IF_ERROR(Begin(call, stale));
  plan_.Begin(call, shape_, {call.chunk_begin, call.layer_begin});
  absl::Status status = Run(call, sink, stale);
  if (delivered_) *stale = false;
  return status;
}

absl::Status Fetcher::FetchOn(const FetchCall& call, const FetchFrom& from, Pieces pieces,
                              Sink sink, bool* stale) {
  CKV_CHECK(!call.position);
  place_ = nullptr;
  pieces_ = &pieces;
  CKV_RETURN_IF_ERROR(Begin(call, stale));
  plan_.Begin(call, shape_, from);
  return Run(call, sink, stale);
}

absl::Status Fetcher::FetchSelection(const SelectionCall& call, SelectionSink sink, bool* stale) {
  place_ = nullptr;
  pieces_ = nullptr;
  FetchCall range;
  range.corpus = call.corpus;
  range.chunk_begin = call.chunk_begin;
  range.chunk_end = call.chunk_end;
  range.layer_begin = call.layer_begin;
  // More layers than there can be are past the model's last all the same.
  range.layer_end =
      call.layer_begin + static_cast<uint32_t>(std::min<size_t>(call.indices.size(), UINT16_MAX));
  range.columns = call.columns;
  range.deadline = call.deadline;
  CKV_RETURN_IF_ERROR(Begin(range, stale));
  CKV_RETURN_IF_ERROR(plan_.BeginSelection(range, shape_, call.indices));
  selection_sink_ = &sink;
  absl::Status status = Run(
      range, [](const FetchedRows&) { return absl::OkStatus(); }, stale);
  if (delivered_) *stale = false;
  return status;
}

absl::Status Fetcher::Begin(const FetchCall& call, bool* stale) {
  *stale = false;
  delivered_ = false;
  strange_ = false;
  links_.clear();
  if (clock_->Now() >= call.deadline)
    return absl::DeadlineExceededError("fetch: the deadline had passed before anything was sent");
  return Check(call);
}

absl::Status Fetcher::Run(const FetchCall& call, Sink sink, bool* stale) {
  CKV_RETURN_IF_ERROR(Prepare(call, stale));
  head_ = in_window_ = 0;
  absl::Status status = Exchange(call, sink, stale);
  if (!status.ok()) AbandonAll();
  return status;
}

absl::Status Fetcher::Check(const FetchCall& call) const {
  if (call.corpus == nullptr) return absl::InvalidArgumentError("fetch: no corpus");
  const Geometry& geometry = call.corpus->geometry;
  if (call.chunk_begin >= call.chunk_end || call.chunk_end > call.corpus->chunks.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("fetch: chunks %d to %d of %d",
                                                      call.chunk_begin, call.chunk_end,
                                                      call.corpus->chunks.size()));
  }
  if (call.layer_begin >= call.layer_end || call.layer_end > geometry.layers) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: layers %d to %d of %d", call.layer_begin, call.layer_end, geometry.layers));
  }
  if (call.position.value_or(0) > uint64_t{kOffsetMax}) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: position %d, limit %d", *call.position, kOffsetMax));
  }
  CKV_RETURN_IF_ERROR(CheckColumns(geometry, call.columns, call.position.has_value()));
  if (sizeof(ReplyHeader) + geometry.row_bytes() > shape_.reply_bytes_max ||
      sizeof(RequestHeader) + sizeof(FetchEntry) > shape_.request_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: a row of %d bytes does not fit a slot: reply_bytes_max %d",
                        geometry.row_bytes(), shape_.reply_bytes_max));
  }
  return absl::OkStatus();
}

absl::Status Fetcher::Prepare(const FetchCall& call, bool* stale) {
  const std::vector<ChunkPlacement>& chunks = call.corpus->chunks;
  const size_t count = call.chunk_end - call.chunk_begin;
  link_of_chunk_.assign(count, nullptr);
  handle_of_chunk_.assign(count, 0);
  delta_of_chunk_.assign(count, 0);
  links_.clear();
  LinkTable& links = router_->links();
  CKV_ASSIGN_OR_RETURN(LinkTable::Route * route,
                       links.RouteOf(call.corpus, {.primitive = Primitive::kFetch}));
  uint64_t position = call.position.value_or(0);
  for (uint32_t chunk = call.chunk_begin; chunk < call.chunk_end; ++chunk) {
    const size_t i = chunk - call.chunk_begin;
    if (call.position) delta_of_chunk_[i] = int64_t(position) - int64_t(chunks[chunk].position);
    position += chunks[chunk].token_count;
    if (!plan_.Asks(chunk) || route->group_of_chunk[chunk] == LinkTable::kNoLink) continue;
    HolderLink* link = &links.Ask(*route, chunk);
    if (std::find(links_.begin(), links_.end(), link) == links_.end()) {
      if (absl::Status status = links.EnsureUp(*link, call.deadline); !status.ok())
        return Annotate(status, link->peer().Describe());
      links_.push_back(link);
    }
    auto handle = links.HandleOf(*route, chunk, call.deadline);
    if (!handle.ok()) {
      *stale = absl::IsNotFound(handle.status()) || absl::IsAborted(handle.status());
      return links.Fail(*link, handle.status());
    }
    link_of_chunk_[i] = link;
    handle_of_chunk_[i] = *handle;
  }
  return absl::OkStatus();
}

absl::Status Fetcher::Exchange(const FetchCall& call, Sink sink, bool* stale) {
  LaneWait& wait = router_->wait();
  wait.Begin(links_.size());
  const bool over_memory = std::all_of(links_.begin(), links_.end(), [](const HolderLink* link) {
    return SharesMemory(link->peer().fabric_kind);
  });
  while (true) {
    bool progress = false, any_came = false;
    // Half a window at once: one system call for four requests, and the holder has the other half.
    // Where a request costs no system call, it is better off with more of them.
    const bool refill = over_memory || in_window_ <= window_.size() / 2;
    while (refill && in_window_ < window_.size()) {
      CKV_ASSIGN_OR_RETURN(const bool posted, PostNext(call));
      if (!posted) break;
      progress = true;
    }
    // What could not be posted for want of a slot waits for a slot; with nothing under way and
    // nothing left to post, all is delivered.
    if (in_window_ == 0 && plan_.done()) return absl::OkStatus();
    for (HolderLink* link : links_) {
      CKV_ASSIGN_OR_RETURN(const bool came, Collect(call, *link, stale));
      any_came |= came;
    }
    if (any_came) wait.Came();
    CKV_RETURN_IF_ERROR(Deliver(call, sink));
    if (progress || any_came) {
      wait.Again();
      continue;
    }
    waiting_.clear();
    for (HolderLink* link : links_) {
      if (absl::Status status = link->lane().status(); !status.ok())
        return router_->links().Fail(*link, status);
      if (link->lane().in_flight() > 0) waiting_.push_back(&link->lane());
    }
    if (absl::Status status = wait.Pause(waiting_, call.deadline); !status.ok()) {
      for (HolderLink* link : links_) {
        if (link->lane().in_flight() > 0) router_->links().NoteSilent(*link);
      }
      return Annotate(status, DescribeWaiting());
    }
  }
}

std::string Fetcher::DescribeWaiting() {
  std::vector<const HolderPeer*> peers;
  for (size_t i = 0; i < in_window_; ++i) {
    if (!at(i).came) peers.push_back(&at(i).link->peer());
  }
  if (!peers.empty()) return DescribePeers(peers);
  // Nothing could be posted: requests that were given up on keep the slots.
  for (const HolderLink* link : links_) peers.push_back(&link->peer());
  return DescribePeers(peers);
}

absl::StatusOr<bool> Fetcher::PostNext(const FetchCall& call) {
  FetchPiece piece;
  if (!plan_.Next(&piece)) return false;
  Segment segment;
  segment.chunk = piece.chunk;
  segment.entry = piece.entry;
  segment.ordinals = piece.ordinals;
  segment.link = link_of_chunk_[piece.chunk - call.chunk_begin];
  segment.entry.handle = handle_of_chunk_[piece.chunk - call.chunk_begin];
  RequestLane& lane = segment.link->lane();
  const std::optional<uint32_t> slot = lane.Acquire();
  if (!slot) {
    plan_.Back();
    return false;
  }
  segment.slot = *slot;
  if (absl::Status status = Land(call, segment, lane); !status.ok()) {
    lane.Release(*slot);
    return status;
  }
  RequestHeader header;
  header.kind = WireKind::kFetch;
  header.request_id = segment.request_id = segment.link->NextRequestId();
  header.epoch = segment.link->epoch().value;
  header.session = segment.link->session().value;
  header.deadline_us = RemainingUs(call.deadline, clock_->Now());
  header.body_bytes = static_cast<uint32_t>(sizeof(FetchEntry) + piece.indices.size_bytes());
  const std::span<std::byte> request = lane.request(*slot);
  std::memcpy(request.data() + sizeof(header), &segment.entry, sizeof(FetchEntry));
  if (!piece.indices.empty()) {
    std::memcpy(request.data() + sizeof(header) + sizeof(FetchEntry), piece.indices.data(),
                piece.indices.size_bytes());
  }
  EncodeHeader(header, request);
  // Polled as soon as all that can be posted is.
  if (absl::Status status = lane.PostLater(*slot, sizeof(header) + header.body_bytes); !status.ok())
    return router_->links().Fail(*segment.link, status);
  at(in_window_++) = segment;
  segment.link->peer().in_flight.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Where the rows shall lie, if the caller wants them anywhere, and the fabric asked to put them
// there. Rows of several layers come in one reply and go to their places when they are shown.
absl::Status Fetcher::Land(const FetchCall& call, Segment& segment, RequestLane& lane) {
  const FetchEntry& entry = segment.entry;
  if (entry.layer_count != 1) return absl::OkStatus();
  const RowRun run = {segment.chunk, entry.layer_begin, entry.token_begin, entry.token_count};
  const uint64_t bytes =
      entry.token_count * entry.sent_row_bytes(call.corpus->geometry.row_bytes());
  if (place_ != nullptr) {
    CKV_ASSIGN_OR_RETURN(const std::span<std::byte> place, PlaceOf(run, bytes));
    segment.pieces = ScatterList(place);
  } else if (pieces_ != nullptr) {
    segment.pieces = (*pieces_)(run);
    CKV_CHECK(segment.pieces.empty() || segment.pieces.bytes() == bytes);
  }
  // So that no error can have the size of the rows: text is never landed.
  if (!segment.pieces.empty() && bytes > kErrorTextBytesMax)
    lane.Land(segment.slot, sizeof(ReplyHeader), segment.pieces);
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> Fetcher::PlaceOf(const RowRun& run, size_t bytes) const {
  const std::span<std::byte> place = (*place_)(run);
  if (Fits(place, bytes)) return place;
  return absl::InvalidArgumentError(absl::StrFormat(
      "fetch: a place of %d bytes for %d rows, %d bytes", place.size(), run.token_count, bytes));
}

absl::StatusOr<bool> Fetcher::Collect(const FetchCall& call, HolderLink& link, bool* stale) {
  RequestLane& lane = link.lane();
  const size_t count = lane.Poll(completions_);
  absl::Status first_error;
  // All of them are taken, errors or not: a slot that completed can no longer be abandoned.
  for (size_t i = 0; i < count; ++i) {
    const Completion done = completions_[i];
    Segment* segment = nullptr;
    for (size_t w = 0; w < in_window_; ++w) {
      if (at(w).link == &link && at(w).slot == done.slot && !at(w).came) segment = &at(w);
    }
    if (segment == nullptr) {
      counters_->discarded.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    const auto reply =
        lane.reply(done.slot).first(std::min(done.bytes, lane.shape().reply_bytes_max));
    const auto header = DecodeReplyHeader(reply);
    if (!header.ok() || header->request_id != segment->request_id) {
      strange_ = true;
      counters_->discarded.fetch_add(1, std::memory_order_relaxed);
      if (!header.ok()) first_error.Update(header.status());
      continue;
    }
    link.peer().in_flight.fetch_sub(1, std::memory_order_relaxed);
    first_error.Update(Accept(call, *segment, *header, reply));
  }
  if (!first_error.ok()) {
    *stale = absl::IsNotFound(first_error) || absl::IsAborted(first_error);
    return router_->links().Fail(link, first_error);
  }
  return count > 0;
}

absl::Status Fetcher::Accept(const FetchCall& call, Segment& segment, const ReplyHeader& header,
                             std::span<const std::byte> reply) {
  const RequestLane& lane = segment.link->lane();
  segment.came = true;
  segment.landed = lane.landed(segment.slot);
  if (!segment.landed) segment.body = reply.subspan(sizeof(ReplyHeader));
  ExpectedReply expected;
  expected.request_id = segment.request_id;
  expected.kind = WireKind::kFetch;
  expected.checksummed = !SharesMemory(lane.kind());
  expected.fetch = segment.entry;
  expected.row_bytes = segment.entry.sent_row_bytes(call.corpus->geometry.row_bytes());
  absl::Status status = segment.landed ? CheckReplyForHint(header, segment.pieces, expected)
                                       : CheckReplyForHint(header, segment.body, expected);
  if (status.ok()) segment.link->peer().Answered();
  return status;
}

absl::Status Fetcher::Deliver(const FetchCall& call, Sink sink) {
  while (in_window_ > 0 && at(0).came) {
    CKV_RETURN_IF_ERROR(Show(call, at(0), sink));
    at(0).link->lane().Release(at(0).slot);
    head_ = (head_ + 1) % window_.size();
    --in_window_;
  }
  return absl::OkStatus();
}

absl::Status Fetcher::Show(const FetchCall& call, const Segment& segment, Sink sink) {
  const Geometry& geometry = call.corpus->geometry;
  const FetchEntry& entry = segment.entry;
  if (!segment.ordinals.empty()) {
    delivered_ = true;
    return (*selection_sink_)({entry.layer_begin, segment.chunk, segment.ordinals, segment.body});
  }
  const size_t layer_bytes = entry.token_count * entry.sent_row_bytes(geometry.row_bytes());
  // A rotation by `delta` is that of the queries of a chunk `delta` before its place.
  const RopeRotation& rotation =
      rotations_.For(geometry, -delta_of_chunk_[segment.chunk - call.chunk_begin]);
  for (uint32_t i = 0; i < entry.layer_count; ++i) {
    const RowRun run = {segment.chunk, entry.layer_begin + i, entry.token_begin, entry.token_count};
    std::span<const std::byte> rows;  // unless landed, which is of one layer
    if (!segment.landed) rows = segment.body.subspan(i * layer_bytes, layer_bytes);
    std::span<std::byte> place;
    if (place_ != nullptr && !segment.pieces.empty()) {
      place = segment.pieces.pieces().front();
    } else if (place_ != nullptr) {
      CKV_ASSIGN_OR_RETURN(place, PlaceOf(run, layer_bytes));
    } else if (!rotation.is_identity()) {
      rotated_.resize(layer_bytes);
      place = rotated_;
    }
    if (!place.empty()) {
      if (!segment.landed) std::memcpy(place.data(), rows.data(), layer_bytes);
      Rotate(rotation, geometry, entry, place);
      rows = place;
    }
    delivered_ = true;
    CKV_RETURN_IF_ERROR(sink({run, rows}));
  }
  return absl::OkStatus();
}

void Fetcher::AbandonAll() {
  if (strange_) {
    // Which slots are done is not known for sure, and a lane holds us to that: they go.
    for (HolderLink* link : links_) link->Close();
  }
  for (size_t i = 0; i < in_window_; ++i) {
    const Segment& segment = at(i);
    const bool outstanding = !segment.came;
    if (outstanding) segment.link->peer().in_flight.fetch_sub(1, std::memory_order_relaxed);
    if (!segment.link->is_up()) continue;
    if (outstanding) {
      segment.link->lane().Abandon(segment.slot);
    } else {
      segment.link->lane().Release(segment.slot);
    }
  }
  in_window_ = 0;
  // What was posted to go with the next goes now, before its deadline says something else.
  for (HolderLink* link : links_) {
    if (link->is_up()) (void)link->lane().Poll(completions_);
  }
}

}  // namespace ckv
