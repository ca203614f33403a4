// The work of one batch as plain values: attention pieces in groups, and merges of their partials.
// A piece is a range of query rows over the rows of one chunk.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "attention/mla_partial.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"
#include "server/batch/ready_request.h"
#include "transport/wire_attend.h"

namespace ckv {

// The limit of multiply-adds in one batch of the polling thread, which serves no other request
// meanwhile. It is 256 rows of 1088 over 1900 tokens, or 7 ms of one core at 75 G/s. A larger
// request moves to another thread.
inline constexpr uint64_t kPollingWorkMax = uint64_t{1} << 29;

// The limit of pieces in one batch: four of the largest requests, or 64 requests of 256 chunks.
inline constexpr uint32_t kBatchPieceCountMax = 4 * kPieceCountMax;

// Memory for f32 partials that this holder merges before it replies. One row of 4096 pieces, of
// (1024 + 2) x 4 B each, fits about eight times. Only address space is reserved: pages get memory
// when requests need them.
inline constexpr size_t kMergeScratchBytes = size_t{128} << 20;

inline bool WantsF32(const RequestHeader& header) { return (header.flags & kFlagPartialF32) != 0; }
// The precision of a decoded request, which is one of the three.
inline Precision PrecisionOf(const RequestHeader& header) {
  if (header.precision == WirePrecision::kFast) return Precision::kFast;
  return header.precision == WirePrecision::kWire ? Precision::kWire : Precision::kExact;
}

// Batch fills the plan with Add. ComputePlan computes it and marks groups as expired. Batch reads
// it again for the replies, then clears it. Used by one thread at a time.
//
// How a request is divided depends on that request alone, never on the others in its batch. So do
// the bits of its result (I2). Nothing is allocated after construction, except a group's list of
// pieces when a batch has more geometries than any before it.
class BatchPlan {
 public:
  // `scratch` has kMergeScratchBytes, in memory that the backend which computes the plan can
  // access.
  explicit BatchPlan(BackendMemory scratch);

  // A piece of a request. The plan sets its `out`.
  struct Piece {
    AttentionPiece piece;
    bool shadow = false;  // its rows are those of a shadow, packed as fp8
  };
  static constexpr size_t kNoGroup = SIZE_MAX;
  // The groups that contain a request's pieces.
  struct Groups {
    size_t exact = 0;
    size_t shadow = kNoGroup;  // the group of pieces over shadows, if there are any
  };

  // Returns true if Add has room for this request.
  bool HasRoom(const AttendRequest& request, const Geometry& geometry) const;
  // Returns true if the partials of the request's pieces do not fit in the scratch at once. The
  // request is then computed in rounds, some rows at a time, and no other request is added after
  // it.
  static bool InRounds(const AttendRequest& request, const Geometry& geometry);
  // Adds a request of `work` multiply-adds, whose pieces are `pieces` in their order. Decides where
  // each piece's partial is written: directly to the reply, or to the scratch for a merge. Call
  // only if HasRoom returned true.
  Groups Add(const ReadyRequest& ready, const AttendRequest& request, std::span<const Piece> pieces,
             uint64_t work);
  void Clear();

  // Multiply-adds of all requests.
  uint64_t work() const { return work_; }
  // Returns true if a group ran past its deadline.
  bool Expired(const Groups& groups) const {
    return groups_[groups.exact].expired ||
           (groups.shadow != kNoGroup && groups_[groups.shadow].expired);
  }

  // For ComputePlan.
  //
  // Pieces of one or more requests whose geometries have the same AttentionShape.
  struct Group {
    AttentionShape shape;
    Instant deadline;      // the latest of its requests' deadlines
    bool expired = false;  // its pieces were not computed, or finished too late
    std::vector<AttentionPiece> pieces;
  };
  // The request that is computed in rounds. There is none if `partials` is empty.
  struct Rounds {
    size_t group = 0;
    struct Partial {
      size_t piece_begin = 0, piece_end = 0;  // in `pieces` and `levels`
      PartialView out;
    };
    std::vector<Partial> partials;
    std::vector<AttentionPiece> pieces;
    std::vector<uint8_t> levels;
    std::vector<ConstPartialView> parts;  // the partials merged in the current round
  };
  std::span<Group> groups() { return std::span(groups_).first(group_count_); }
  // Drops the merges of expired groups, and returns the others. The parts of a merge are in the
  // order of the pieces.
  std::span<const MergeJob> LiveMerges();
  Rounds& rounds() { return rounds_; }

  // Returns an f32 partial in the scratch. It is valid until the scratch is rewound or the plan
  // cleared.
  PartialView TakeScratch(uint32_t row_count, uint32_t d_v);
  // The largest number of rows for which the whole scratch holds one partial per piece. At least 1,
  // because a request has at most kPieceCountMax pieces.
  static uint32_t RowsInScratch(size_t piece_count, uint32_t d_v) {
    return static_cast<uint32_t>(kScratchFloats / piece_count / (d_v + 2 + kLineFloats));
  }
  void RewindScratch() { scratch_used_ = 0; }

 private:
  static constexpr size_t kScratchFloats = kMergeScratchBytes / sizeof(float);
  static constexpr size_t kLineFloats = 16;
  static_assert(kScratchFloats / kPieceCountMax >= kRowWidthMax + 2 + kLineFloats);
  // Floats of one f32 partial, in whole cache lines.
  static constexpr size_t LineFloats(uint32_t row_count, uint32_t d_v) {
    return (PartialFloats(row_count, d_v) + kLineFloats - 1) / kLineFloats * kLineFloats;
  }
  // Floats of all partials of a request that are merged.
  static size_t MergedFloats(const AttendRequest& request, const Geometry& geometry);
  // Adds the pieces [piece_begin, piece_end) of a request, which together produce the partial
  // `out`.
  void AddPartial(const AttendRequest& request, std::span<const Piece> pieces, size_t piece_begin,
                  size_t piece_end, const Groups& groups, uint32_t d_v, const PartialView& out);
  void AddRound(const AttendRequest& request, std::span<const Piece> pieces, size_t piece_begin,
                size_t piece_end, const PartialView& out);
  // Returns the group for this shape, creating it if necessary, for a request with this deadline.
  size_t GroupFor(const AttentionShape& shape, Instant deadline);

  uint64_t work_ = 0;
  size_t piece_count_ = 0;
  std::vector<Group> groups_;  // the first group_count_ are in use
  size_t group_count_ = 0;
  std::vector<ConstPartialView> parts_;  // the merges' partials; never reallocated
  std::vector<uint8_t> levels_;          // the same
  std::vector<MergeJob> merges_;
  std::vector<Groups> merge_groups_;  // the groups of each merge
  Rounds rounds_;
  const BackendMemory scratch_;
  size_t scratch_used_ = 0;  // floats
};

}  // namespace ckv
