// The frames of one attend, from their slots to their replies.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "attention/partial.h"
#include "client/attend/planned_call.h"
#include "client/attend/stream_order.h"
#include "client/call/exchange.h"
#include "client/trace/call_spans.h"
#include "proto/base/clock.h"
#include "transport/wire.h"

namespace ckv {

// Writes frames into slots as slots become free, and posts each one once the stream has written it.
// Keeps a reply until nothing reads it any more. Belongs to one call context, and keeps its memory
// between calls.
class FramePoster {
 public:
  // All must outlive this object.
  FramePoster(const PlannedCall* planned, Exchange* exchange, ComputeStream* stream,
              StreamOrder* order, Clock* clock, CallSpans* spans);

  // Starts an attempt, after AttendPlan::Cut. Its lanes must be up.
  void Begin();
  // Whether every reply has a slot of its own. If so, it stays in its slot until it is merged.
  bool fits_slots() const { return fits_slots_; }

  // Writes and posts what the slots take. Each round has one frame per holder, so every holder has
  // work before any has all of its own. Frames that a device is still writing are posted later. All
  // blocks before `first_open` are merged. Returns whether there was a frame.
  //   As Exchange::Post and WriteFrame.
  absl::StatusOr<bool> PostAll(uint32_t first_open);
  // Posts the frames that are written, if the stream is done with them. Returns whether it was.
  absl::StatusOr<bool> PostWritten();
  // Whether a frame is written and not posted.
  bool holds_any() const { return !written_.empty(); }

  // The body of a reply, and its memory.
  struct Body {
    std::span<const std::byte> bytes;
    MemoryKind memory = MemoryKind::kHost;
  };
  // Keeps the body of a reply until Release of its frame. A reply whose slot another frame needs is
  // copied, and its slot is free at once.
  //   Errors of Backend::Grow.
  absl::StatusOr<Body> Keep(const Exchange::Reply& reply);
  void Release(uint32_t frame);
  // Ends an attempt that failed. The stream must be done.
  void GiveUp();

  // A posted frame's bytes, and the flags of its header.
  uint32_t bytes(uint32_t frame) const { return frames_[frame].bytes; }
  uint8_t flags(uint32_t frame) const { return frames_[frame].flags; }
  // Whether a frame was posted to the holder.
  bool requested(uint32_t peer_index) const { return flows_[peer_index].requested; }
  // The holders to which frames were posted.
  uint32_t asked_count() const;
  uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Frame {
    uint32_t slot = 0;
    uint32_t bytes = 0;
    uint8_t flags = 0;
    bool copied = false;  // the reply is in copies_
    uint32_t copy = 0;
  };
  // The part of the call that is sent to one holder.
  struct Flow {
    uint32_t next = 0;  // the next frame to post
    bool requested = false;
    // A block has more frames than the lane has slots. Replies are then copied out on arrival, one
    // block at a time.
    bool copy_out = false;
  };
  // A frame in its slot. It is posted once the stream has written it.
  struct Written {
    uint32_t peer_index = 0;
    uint32_t slot = 0;
    uint32_t ordinal = 0;
    RequestHeader header;
  };

  absl::StatusOr<bool> WriteNext(uint32_t peer_index, uint32_t first_open);
  absl::Status Post(Written& frame, Instant now);

  const PlannedCall& planned_;
  Exchange& exchange_;
  ComputeStream& stream_;
  StreamOrder& order_;
  Clock* const clock_;
  CallSpans& spans_;

  bool fits_slots_ = true;
  std::vector<Flow> flows_;  // [peers]
  std::vector<Frame> frames_;
  std::vector<Written> written_;       // not posted yet, in order
  std::vector<BackendMemory> copies_;  // replies, if a flow copies out
  std::vector<uint32_t> free_copies_;
  uint64_t bytes_sent_ = 0;
};

}  // namespace ckv
