#include "client/attend/stream_order.h"

#include <algorithm>
#include <utility>

namespace ckv {

void StreamOrder::Begin() {
  held_by_ = nullptr;
  waited_for_.clear();
  producers_ready_ = true;
}

bool StreamOrder::MustWaitFor(ComputeStream* after) {
  held_by_ = nullptr;
  if (after == nullptr || HasWaitedFor(after)) return false;
  if (&after->backend() == &stream_.backend() || after->Ready()) return false;
  held_by_ = after;
  return true;
}

absl::Status StreamOrder::Wait() {
  waited_for_.push_back(held_by_);
  return held_by_->Wait();
}

bool StreamOrder::HasWaitedFor(const ComputeStream* after) const {
  return std::find(waited_for_.begin(), waited_for_.end(), after) != waited_for_.end();
}

absl::Status StreamOrder::Follow(ComputeStream*& stream) {
  ComputeStream* const after = std::exchange(stream, nullptr);
  if (after == nullptr) return absl::OkStatus();
  producers_ready_ = producers_ready_ && after->Ready();
  return HasWaitedFor(after) ? absl::OkStatus() : stream_.backend().Order(after, stream_);
}

}  // namespace ckv
