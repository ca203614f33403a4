// One attempt of a fetch, in order: check the call, plan its parts, bring up the links of its
// holders, and loop. Each round posts parts while the window and the lane have space, takes the
// replies that arrived, and passes those at the head of the window to the sink.

#include "client/call/fetch.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "attention/rope.h"
#include "client/holders/lane_pinning.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"
#include "transport/wire.h"

namespace ckv {
namespace {

uint64_t SentBytes(const FetchCall& call, const FetchEntry& entry) {
  return entry.sent_row_bytes(call.corpus->geometry.tensor_row_bytes(entry.tensor_begin));
}

// Aligned for bf16, because rows are rotated in place.
bool Fits(std::span<const std::byte> place, size_t bytes) {
  return place.size() == bytes && reinterpret_cast<uintptr_t>(place.data()) % sizeof(uint16_t) == 0;
}

}  // namespace

Fetcher::Fetcher(const LinkOptions* options, LinkTable* links, Exchange* exchange,
                 ComputeStream* stream)
    : clock_(options->clock),
      shape_(options->shape),
      table_(links),
      exchange_(exchange),
      stream_(*stream),
      window_(std::max(1u, options->shape.slot_count / 2)) {}

absl::Status Fetcher::Fetch(const FetchCall& call, const Place* place, Sink sink, uint64_t shown) {
  place_ = place;
  spans_ = nullptr;
  CKV_RETURN_IF_ERROR(Begin(call, shown));
  plan_.Begin(call, shape_, {call.chunk_begin, call.tensor_begin});
  plan_.Skip(shown);
  return Run(call, sink);
}

absl::Status Fetcher::FetchOn(const FetchCall& call, const FetchFrom& from, SpansOf spans,
                              Sink sink) {
  CKV_CHECK(!call.position);
  place_ = nullptr;
  spans_ = &spans;
  CKV_RETURN_IF_ERROR(Begin(call, /*shown=*/0));
  plan_.Begin(call, shape_, from);
  return Run(call, sink);
}

absl::Status Fetcher::FetchSelection(const SelectionCall& call, SelectionSink sink,
                                     uint64_t shown) {
  place_ = nullptr;
  spans_ = nullptr;
  FetchCall range;
  range.corpus = call.corpus;
  range.chunk_begin = call.chunk_begin;
  range.chunk_end = call.chunk_end;
  range.tensor_begin = call.layer_begin;
  // A clamped count is still beyond any model's last layer, so Check refuses it.
  range.tensor_end =
      call.layer_begin + static_cast<uint32_t>(std::min<size_t>(call.indices.size(), UINT16_MAX));
  range.columns = call.columns;
  range.trace = call.trace;
  range.deadline = call.deadline;
  CKV_RETURN_IF_ERROR(Begin(range, shown));
  const uint32_t layers = range.corpus->geometry.layers;
  if (range.tensor_end > layers) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: layers %d to %d of %d", range.tensor_begin, range.tensor_end, layers));
  }
  CKV_RETURN_IF_ERROR(plan_.BeginSelection(range, shape_, call.indices));
  plan_.Skip(shown);
  selection_sink_ = &sink;
  return Run(range, [](const FetchedRows&) { return absl::OkStatus(); });
}

absl::Status Fetcher::Begin(const FetchCall& call, uint64_t shown) {
  shown_ = shown;
  exchange_->Clear();
  if (clock_->Now() >= call.deadline)
    return absl::DeadlineExceededError("fetch: the deadline had passed before anything was sent");
  return Check(call);
}

absl::Status Fetcher::Run(const FetchCall& call, Sink sink) {
  CKV_RETURN_IF_ERROR(Prepare(call));
  head_ = in_window_ = 0;
  absl::Status status = GoRound(call, sink);
  if (!status.ok()) exchange_->GiveUp();
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
  const uint32_t end = call.tensor_end, tensors = geometry.tensor_count();
  if (call.tensor_begin >= end || end > tensors) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: tensors %d to %d of %d", call.tensor_begin, end, tensors));
  }
  if (end > geometry.layers && (call.position || call.columns.bytes != 0)) {
    return absl::InvalidArgumentError(
        "fetch: index keys are fetched whole and at their canonical position");
  }
  if (call.position.value_or(0) > uint64_t{kOffsetMax}) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: position %d, limit %d", *call.position, kOffsetMax));
  }
  CKV_RETURN_IF_ERROR(CheckColumns(geometry, call.columns, call.position.has_value()));
  const uint32_t row_bytes =
      std::max(geometry.tensor_row_bytes(call.tensor_begin), geometry.tensor_row_bytes(end - 1));
  if (sizeof(ReplyHeader) + row_bytes > shape_.reply_bytes_max ||
      sizeof(RequestHeader) + sizeof(FetchEntry) > shape_.request_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: a row of %d bytes does not fit a slot: reply_bytes_max %d",
                        row_bytes, shape_.reply_bytes_max));
  }
  return absl::OkStatus();
}

absl::Status Fetcher::Prepare(const FetchCall& call) {
  const std::vector<ChunkPlacement>& chunks = call.corpus->chunks;
  const size_t count = call.chunk_end - call.chunk_begin;
  peer_of_chunk_.assign(count, 0);
  handle_of_chunk_.assign(count, 0);
  delta_of_chunk_.assign(count, 0);
  CKV_ASSIGN_OR_RETURN(LinkTable::ChunkLinks * chunk_links,
                       table_->LinksFor(call.corpus, {.primitive = Primitive::kFetch}));
  uint64_t position = call.position.value_or(0);
  for (uint32_t chunk = call.chunk_begin; chunk < call.chunk_end; ++chunk) {
    const size_t i = chunk - call.chunk_begin;
    if (call.position) delta_of_chunk_[i] = int64_t(position) - int64_t(chunks[chunk].position);
    position += chunks[chunk].token_count;
    if (!plan_.Asks(chunk) || chunk_links->group_of_chunk[chunk] == LinkTable::kNoLink) continue;
    HolderLink& link = table_->Choose(*chunk_links, chunk);
    const size_t peers_before = exchange_->peer_count();
    peer_of_chunk_[i] = exchange_->Add(link);
    if (exchange_->peer_count() > peers_before) {
      if (absl::Status status = table_->EnsureUp(link, call.deadline); !status.ok())
        return Annotate(status, link.peer().Describe());
    }
    auto handle = table_->HandleOf(*chunk_links, chunk, call.deadline);
    if (!handle.ok()) return table_->Fail(link, handle.status());
    handle_of_chunk_[i] = *handle;
  }
  return absl::OkStatus();
}

absl::Status Fetcher::GoRound(const FetchCall& call, Sink sink) {
  const auto accept = [&](const Exchange::Reply& reply) { return Accept(call, reply); };
  exchange_->Start(call.deadline);
  bool over_memory = true;
  for (uint32_t peer_index = 0; peer_index < exchange_->peer_count(); ++peer_index)
    over_memory &= SharesMemory(exchange_->link(peer_index).lane().kind());
  while (true) {
    bool posted = false;
    // Refills half a window at once: one system call sends several requests, while the holder still
    // has the other half. If posting costs no system call, it refills as soon as there is room.
    const bool refill = over_memory || in_window_ <= window_.size() / 2;
    while (refill && in_window_ < window_.size()) {
      CKV_ASSIGN_OR_RETURN(const bool one, PostNext(call));
      if (!one) break;
      posted = true;
    }
    // A part without a free slot waits for one. If nothing is in flight and no part is left, all
    // rows were delivered.
    if (in_window_ == 0 && plan_.done()) return absl::OkStatus();
    CKV_ASSIGN_OR_RETURN(const bool came, exchange_->Collect(accept));
    CKV_RETURN_IF_ERROR(Deliver(call, sink));
    CKV_RETURN_IF_ERROR(exchange_->EndRound(posted || came));
  }
}

absl::StatusOr<bool> Fetcher::PostNext(const FetchCall& call) {
  FetchPart part;
  if (!plan_.Next(&part)) return false;
  Segment segment;
  segment.chunk = part.chunk;
  segment.entry = part.entry;
  segment.ordinals = part.ordinals;
  segment.peer_index = peer_of_chunk_[part.chunk - call.chunk_begin];
  segment.entry.handle = handle_of_chunk_[part.chunk - call.chunk_begin];
  RequestLane& lane = exchange_->link(segment.peer_index).lane();
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
  SetTrace(call.trace, header);
  header.body_bytes = static_cast<uint32_t>(sizeof(FetchEntry) + part.indices.size_bytes());
  std::byte* const body = lane.request(*slot).data() + sizeof(header);
  std::memcpy(body, &segment.entry, sizeof(FetchEntry));
  if (!part.indices.empty())
    std::memcpy(body + sizeof(FetchEntry), part.indices.data(), part.indices.size_bytes());
  // The frame is sent with the next one, or at the next poll.
  const size_t place = (head_ + in_window_) % window_.size();
  CKV_RETURN_IF_ERROR(exchange_->Post(segment.peer_index, *slot, header,
                                      static_cast<uint32_t>(place), clock_->Now(),
                                      Exchange::Send::kWithNext));
  window_[place] = segment;
  ++in_window_;
  return true;
}

// Finds the caller's memory for the rows, if there is any, and requests that the fabric write them
// there. A reply with rows of several tensors is copied to their places on delivery.
absl::Status Fetcher::Land(const FetchCall& call, Segment& segment, RequestLane& lane) {
  const FetchEntry& entry = segment.entry;
  if (entry.tensor_count != 1) return absl::OkStatus();
  const RowRun run = {segment.chunk, entry.tensor_begin, entry.token_begin, entry.token_count};
  const uint64_t bytes = entry.token_count * SentBytes(call, entry);
  if (place_ != nullptr) {
    CKV_ASSIGN_OR_RETURN(const std::span<std::byte> place, PlaceOf(run, bytes));
    segment.spans = ScatterList(place);
  } else if (spans_ != nullptr) {
    segment.spans = (*spans_)(run);
    CKV_CHECK(segment.spans.empty() || segment.spans.bytes() == bytes);
  }
  // Only bodies longer than any error text, so that an error text is never landed.
  if (!segment.spans.empty() && bytes > kErrorTextBytesMax)
    lane.Land(segment.slot, sizeof(ReplyHeader), segment.spans);
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> Fetcher::PlaceOf(const RowRun& run, size_t bytes) const {
  const std::span<std::byte> place = (*place_)(run);
  if (Fits(place, bytes)) return place;
  return absl::InvalidArgumentError(absl::StrFormat(
      "fetch: a place of %d bytes for %d rows, %d bytes", place.size(), run.token_count, bytes));
}

absl::Status Fetcher::Accept(const FetchCall& call, const Exchange::Reply& reply) {
  const RequestLane& lane = exchange_->link(reply.peer_index).lane();
  Segment& segment = window_[reply.tag];
  segment.came = true;
  segment.landed = lane.landed(segment.slot);
  if (!segment.landed) segment.body = reply.bytes.subspan(sizeof(ReplyHeader));
  ExpectedReply expected;
  expected.request_id = reply.header.request_id;
  expected.kind = WireKind::kFetch;
  expected.checksummed = !SharesMemory(lane.kind());
  expected.fetch = segment.entry;
  expected.row_bytes = SentBytes(call, segment.entry);
  return segment.landed ? CheckReplyForHint(reply.header, segment.spans, expected)
                        : CheckReplyForHint(reply.header, segment.body, expected);
}

absl::Status Fetcher::Deliver(const FetchCall& call, Sink sink) {
  while (in_window_ > 0 && at(0).came) {
    CKV_RETURN_IF_ERROR(Show(call, at(0), sink));
    ++shown_;
    exchange_->Release(at(0).peer_index, at(0).slot);
    head_ = (head_ + 1) % window_.size();
    --in_window_;
  }
  return absl::OkStatus();
}

// Rotates the RoPE bands of rows that the processor can access, and returns when that is done. The
// band is at the end of a row of either dtype. Selected columns contain all of it or none.
absl::Status Fetcher::Rotate(const RopeRotation& rotation, const Geometry& geometry,
                             const FetchEntry& entry, const RowPlace& rows) {
  const uint32_t row_bytes = geometry.row_bytes();
  const auto width = static_cast<uint32_t>(entry.sent_row_bytes(row_bytes));
  if (rotation.is_identity() || entry.column_begin + width < row_bytes) return absl::OkStatus();
  const BackendReach& reach = stream_.backend().reach();
  if (!reach.rotated_from.Has(rows.memory) || !reach.rotated_to.Has(rows.memory)) {
    RotateBandsFp8DsMla(rotation, rows.data, entry.token_count, width, width);
    return absl::OkStatus();
  }
  absl::Status rotated = stream_.backend().Rotate(
      rotation, {rows.data, entry.token_count, width, rows.memory}, width, rows, stream_);
  rotated.Update(stream_.Wait());
  return rotated;
}

absl::Status Fetcher::Show(const FetchCall& call, const Segment& segment, Sink sink) {
  const Geometry& geometry = call.corpus->geometry;
  const FetchEntry& entry = segment.entry;
  if (!segment.ordinals.empty()) {
    return (*selection_sink_)({entry.tensor_begin, segment.chunk, segment.ordinals, segment.body});
  }
  const size_t tensor_bytes = entry.token_count * SentBytes(call, entry);
  // Rotating rows by `delta` is the same as rotating the queries of a chunk at offset -`delta`.
  const RopeRotation& rotation =
      rotations_.For(geometry, -delta_of_chunk_[segment.chunk - call.chunk_begin]);
  for (uint32_t i = 0; i < entry.tensor_count; ++i) {
    const RowRun run = {segment.chunk, entry.tensor_begin + i, entry.token_begin,
                        entry.token_count};
    std::span<const std::byte> rows;  // empty if landed; then there is one tensor
    if (!segment.landed) rows = segment.body.subspan(i * tensor_bytes, tensor_bytes);
    MemoryKind memory = SlotMemory(exchange_->link(segment.peer_index).lane());
    std::span<std::byte> place;
    if (place_ != nullptr) {
      memory = MemoryKind::kHost;
      if (!segment.spans.empty()) {
        place = segment.spans.spans().front();
      } else {
        CKV_ASSIGN_OR_RETURN(place, PlaceOf(run, tensor_bytes));
      }
    } else if (!rotation.is_identity()) {
      CKV_RETURN_IF_ERROR(stream_.backend().Grow(rotated_, tensor_bytes, memory));
      place = {rotated_.data(), tensor_bytes};
    }
    if (!place.empty()) {
      if (!segment.landed) std::memcpy(place.data(), rows.data(), tensor_bytes);
      CKV_RETURN_IF_ERROR(Rotate(rotation, geometry, entry, {place.data(), memory}));
      rows = place;
    }
    CKV_RETURN_IF_ERROR(sink({run, rows, memory}));
  }
  return absl::OkStatus();
}

}  // namespace ckv
