// Reads the arguments of an ABI call into a requester's call. Used by ckv_attend and ckv_submit.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "attention/backend.h"
#include "client/bindings/c/ckv.h"
#include "client/calls.h"

namespace ckv::c {

// The chunks of a part. Empty if the part is the whole corpus at its canonical positions.
using ChunkUses = absl::InlinedVector<ChunkUse, 16>;

// Reads a part, and fills `uses`.
//   InvalidArgument     no corpus, an empty list of chunks, or an offset beyond its limit.
absl::Status TakePart(const ckv_part& part, std::shared_ptr<const Corpus>& corpus, ChunkUses& uses);

// Not movable: the call contains pointers into it.
class AttendArguments {
 public:
  AttendArguments() = default;
  AttendArguments(const AttendArguments&) = delete;
  AttendArguments& operator=(const AttendArguments&) = delete;

  // Reads a call. Call it once. The caller's memory stays borrowed. `backend` is the requester's.
  //   InvalidArgument     a pointer is missing, or fields do not fit together in a way that the
  //                       requester would not detect.
  absl::Status Take(const ckv_attend_call* call, const ckv_attend_report* report,
                    const Backend& backend);

  // Whether its only segment names a part. Then part_call() is the call to make.
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
  absl::InlinedVector<uint32_t, 8> own_counts_;  // one per segment
  std::shared_ptr<const Corpus> corpus_;
  ChunkUses uses_;
};

// Writes the report of a call. `to` may be null.
absl::Status GiveReport(const AttendReport& report, ckv_attend_report* to);

}  // namespace ckv::c
