// The frames of one attempt, on the thread of the call. A frame's states, in order:
//   unwritten  WriteNext acquires a slot and writes the frame, perhaps by work on the stream
//   written    PostWritten posts it once the stream is done, unless the deadline has passed
//   posted     Keep takes its reply. If a block has more frames than the lane has free slots, it
//              copies the reply and frees the slot
//   kept       Release frees the copy or the slot once the reply is merged

#include "client/call/frame_poster.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "client/holders/lane_pinning.h"
#include "client/plan/frame_writer.h"
#include "proto/base/status.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

// More rows than this for one holder make a bulk call. A default slot fits this many rows of
// DeepSeek, and a holder's queue of short requests takes one slot per session
// (server/dispatch/admission.h).
constexpr uint64_t kShortRowCountMax = 256;

}  // namespace

FramePoster::FramePoster(const PlannedCall* planned, Exchange* exchange, ComputeStream* stream,
                         StreamOrder* order, Clock* clock, CallSpans* spans)
    : planned_(*planned),
      exchange_(*exchange),
      stream_(*stream),
      order_(*order),
      clock_(clock),
      spans_(*spans) {}

void FramePoster::Begin() {
  const std::vector<PlannedPeer>& peers = planned_.peers;
  frames_.assign(planned_.plan.frames().size(), Frame{});
  fits_slots_ = true;
  bytes_sent_ = 0;
  flows_.resize(peers.size());
  for (uint32_t peer_index = 0; peer_index < peers.size(); ++peer_index) {
    const PlannedPeer& planned = peers[peer_index];
    const RequestLane& lane = exchange_.link(peer_index).lane();
    const uint64_t slots = lane.shape().slot_count - lane.in_flight();
    flows_[peer_index] = {.next = planned.frame_begin,
                          .copy_out = planned.frames_per_block > slots};
    if (planned.frame_end - planned.frame_begin > slots) fits_slots_ = false;
  }
  free_copies_.clear();
  for (uint32_t i = 0; i < copies_.size(); ++i) free_copies_.push_back(i);
}

absl::StatusOr<bool> FramePoster::PostAll(uint32_t first_open) {
  CKV_ASSIGN_OR_RETURN(bool any, PostWritten());
  for (bool written = true; written;) {
    written = false;
    for (uint32_t peer_index = 0; peer_index < flows_.size(); ++peer_index) {
      CKV_ASSIGN_OR_RETURN(const bool one, WriteNext(peer_index, first_open));
      written |= one;
    }
    any |= written;
  }
  return any;
}

absl::StatusOr<bool> FramePoster::WriteNext(uint32_t peer_index, uint32_t first_open) {
  const RouteCall& call = planned_.call;
  const PlannedPeer& to = planned_.peers[peer_index];
  Flow& flow = flows_[peer_index];
  if (flow.next == to.frame_end) return false;
  // Frames that are written but not posted are too late, and so is this one.
  if (!written_.empty() && clock_->Now() >= call.deadline) return false;
  const uint32_t ordinal = flow.next;
  const PlannedFrame& planned = planned_.plan.frames()[ordinal];
  if (flow.copy_out && planned_.plan.PartsOf(planned).front().block_begin > first_open)
    return false;
  RequestLane& lane = exchange_.link(peer_index).lane();
  const std::optional<uint32_t> slot = lane.Acquire();
  if (!slot) return false;
  absl::StatusOr<RequestHeader> header =
      WriteFrame(call, planned_.plan, planned, lane.request(*slot), SlotMemory(lane), stream_);
  if (!header.ok()) {
    stream_.Wait().IgnoreError();
    lane.Release(*slot);
    return header.status();
  }
  if (to.row_count > kShortRowCountMax) header->flags |= kFlagBulk;
  written_.push_back({peer_index, *slot, ordinal, *header});
  ++flow.next;
  CKV_RETURN_IF_ERROR(PostWritten().status());
  return true;
}

absl::StatusOr<bool> FramePoster::PostWritten() {
  if (written_.empty() || !stream_.Ready()) return false;
  CKV_RETURN_IF_ERROR(stream_.Wait());
  order_.NoteWaited();
  // Read only now: the time until the frames were written is not their holders'.
  const Instant now = clock_->Now();
  // Replies that arrived in time must be taken before any holder counts as silent.
  if (now >= planned_.call.deadline) return false;
  for (size_t i = 0; i < written_.size(); ++i) {
    if (absl::Status status = Post(written_[i], now); !status.ok()) {
      written_.erase(written_.begin(), written_.begin() + static_cast<ptrdiff_t>(i) + 1);
      return status;
    }
  }
  written_.clear();
  return true;
}

absl::Status FramePoster::Post(Written& frame, Instant now) {
  Frame& posting = frames_[frame.ordinal];
  RequestHeader& header = frame.header;
  posting.slot = frame.slot;
  posting.flags = header.flags;
  posting.bytes = static_cast<uint32_t>(sizeof(RequestHeader) + header.body_bytes);
  if (spans_.on()) {
    const HolderLink& link = exchange_.link(frame.peer_index);
    spans_.BeginFrame(frame.ordinal, link.peer().id().name, FabricName(link.lane().kind()),
                      posting.bytes, now, header);
  }
  CKV_RETURN_IF_ERROR(exchange_.Post(frame.peer_index, frame.slot, header, frame.ordinal, now));
  flows_[frame.peer_index].requested = true;
  bytes_sent_ += posting.bytes;
  return absl::OkStatus();
}

absl::StatusOr<FramePoster::Body> FramePoster::Keep(const Exchange::Reply& reply) {
  Body body = {reply.bytes.subspan(sizeof(ReplyHeader)),
               SlotMemory(exchange_.link(reply.peer_index).lane())};
  if (!flows_[reply.peer_index].copy_out) return body;
  if (free_copies_.empty()) {
    free_copies_.push_back(static_cast<uint32_t>(copies_.size()));
    copies_.emplace_back();
  }
  Frame& frame = frames_[reply.tag];
  frame.copy = free_copies_.back();
  free_copies_.pop_back();
  BackendMemory& copy = copies_[frame.copy];
  CKV_RETURN_IF_ERROR(stream_.backend().Grow(copy, body.bytes.size(), body.memory));
  std::memcpy(copy.data(), body.bytes.data(), body.bytes.size());
  body.bytes = {copy.data(), body.bytes.size()};
  frame.copied = true;
  exchange_.Release(reply.peer_index, reply.slot);
  return body;
}

void FramePoster::Release(uint32_t ordinal) {
  const Frame& frame = frames_[ordinal];
  if (frame.copied) {
    free_copies_.push_back(frame.copy);
  } else {
    exchange_.Release(planned_.plan.frames()[ordinal].peer_index, frame.slot);
  }
}

void FramePoster::GiveUp() {
  for (const Written& frame : written_) {
    HolderLink& link = exchange_.link(frame.peer_index);
    if (link.is_up()) link.lane().Release(frame.slot);
  }
  written_.clear();
}

uint32_t FramePoster::asked_count() const {
  return static_cast<uint32_t>(
      std::count_if(flows_.begin(), flows_.end(), [](const Flow& flow) { return flow.requested; }));
}

}  // namespace ckv
