// A call of the ABI as the requester's: what ckv_attend and ckv_submit share.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "attention/backend.h"
#include "client/c/ckv.h"
#include "client/calls.h"

namespace ckv::c {

// The chunks of a part. Empty if it is all of the corpus, where they stand.
using ChunkUses = absl::InlinedVector<ChunkUse, 16>;

// Reads a part, and fills `uses`.
//   InvalidArgument     it has no corpus, no chunks in its list, or an offset beyond its limit.
absl::Status TakePart(const ckv_part& part, std::shared_ptr<const Corpus>& corpus, ChunkUses& uses);

// Not movable: the call points into it.
class AttendArguments {
 public:
  AttendArguments() = default;
  AttendArguments(const AttendArguments&) = delete;
  AttendArguments& operator=(const AttendArguments&) = delete;

  // Reads a call, once. The caller's memory stays borrowed. `backend` is the requester's.
  //   InvalidArgument     a pointer is missing, or something does not fit together that the
  //                       requester would not see.
  absl::Status Take(const ckv_attend_call* call, const ckv_attend_report* report,
                    const Backend& backend);

  // Whether its only segment names a part, and so is attended by part_call().
  bool has_part() const { return corpus_ != nullptr; }
  const LayerCall& layer_call() const { return call_; }
  AttendCall part_call() const;
  const PartialView& out() const { return out_; }

 private:
  absl::Status TakeSegment(const ckv_segment& segment, uint32_t call_rows, bool only);
  absl::Status TakeOwn(const ckv_own_rows& own, uint32_t row_bytes);
  absl::Status TakeDevice(const ckv_attend_call& call);

  const Backend* backend_ = nullptr;

  LayerCall call_;
  PartialView out_;
  absl::InlinedVector<Segment, 8> segments_;
  absl::InlinedVector<OwnRows, 8> own_;
  absl::InlinedVector<uint32_t, 8> own_counts_;  // one a segment
  std::shared_ptr<const Corpus> corpus_;
  ChunkUses uses_;
};

// Writes what a call did. `to` may be null.
absl::Status GiveReport(const AttendReport& report, ckv_attend_report* to);

}  // namespace ckv::c
