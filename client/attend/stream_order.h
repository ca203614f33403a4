// Orders the work of a call after the work on the streams that its caller names.

#pragma once

#include <vector>

#include "absl/status/status.h"
#include "attention/backend.h"

namespace ckv {

// A device orders a stream of its own after another one, without a wait of this thread. For a
// stream of another backend this thread must wait, once in an attempt. Belongs to one call context,
// and to one thread at a time. An attempt calls Begin; then, for each stream `s` that it must
// follow:
//   while MustWaitFor(s): Wait, or return to the caller and go on here later
//   Follow(s)
class StreamOrder {
 public:
  // `stream` has the work of the calls. It must outlive this object.
  explicit StreamOrder(ComputeStream* stream) : stream_(*stream) {}

  // Begins an attempt, which has waited for no stream yet.
  void Begin();

  // Returns true if this thread must wait for `after` first. Returns false if `after` is null, is a
  // stream of this backend, is ready, or has been waited for.
  bool MustWaitFor(ComputeStream* after);
  // Whether the last MustWaitFor of this attempt returned true.
  bool must_wait() const { return held_by_ != nullptr; }
  // Waits for the stream of the last MustWaitFor, which must have returned true.
  //   Internal            the device failed.
  absl::Status Wait();
  // Whether this attempt has waited for the stream. Work that its owner added since is not waited
  // for.
  bool HasWaitedFor(const ComputeStream* after) const;

  // Orders later work of this attempt after the work that is on `after` now, and clears `after`.
  // Work that its owner adds later does not concern this call. MustWaitFor must have returned
  // false. Does nothing for null. Returns errors of Backend::Order; `after` is null even then.
  absl::Status Follow(ComputeStream*& after);

  // Whether the streams that were followed had done their work when Follow was called, or have done
  // it since NoteWaited.
  bool producers_ready() const { return producers_ready_; }
  // Call after a wait for the stream of the calls: it ends after all that it follows.
  void NoteWaited() { producers_ready_ = true; }

 private:
  ComputeStream& stream_;
  ComputeStream* held_by_ = nullptr;
  std::vector<ComputeStream*> waited_for_;
  bool producers_ready_ = true;
};

}  // namespace ckv
