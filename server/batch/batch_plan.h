// The work of one batch as plain values: pieces of attention in groups, and merges of their
// partials.

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

// The limit of multiply-adds in one batch of the polling thread, during which it serves nobody
// else. It is 256 rows of 1088 over 1900 tokens, or 7 ms of one core at 75 G/s. A larger request
// leaves that thread.
inline constexpr uint64_t kPollingWorkMax = uint64_t{1} << 29;

// The limit of pieces in one batch: four of the largest requests, or 64 requests of 256 chunks.
inline constexpr uint32_t kBatchPieceCountMax = 4 * kPieceCountMax;

// Memory for f32 partials that this holder merges before it answers. It holds one row of 4096
// pieces, of (1024 + 2) x 4 B each, eight times. It is address space: pages are touched as requests
// need them.
inline constexpr size_t kMergeScratchBytes = size_t{128} << 20;

inline bool WantsF32(const RequestHeader& header) { return (header.flags & kFlagPartialF32) != 0; }
// The grade of a request that was decoded, so one of the three.
inline Grade GradeOf(const RequestHeader& header) {
  if (header.grade == WireGrade::kFast) return Grade::kFast;
  return header.grade == WireGrade::kWire ? Grade::kWire : Grade::kExact;
}

// Filled by Batch with Add; worked off by ComputePlan, which marks groups as expired; read
// again for the replies; then cleared. Used by one thread at a time.
//
// How a request is cut depends on that request alone, never on what shares its batch, so its bits
// do not either (I2). Nothing is allocated after construction, except a group's list of pieces when
// a batch first has so many geometries.
class BatchPlan {
 public:
  // `scratch` is kMergeScratchBytes that the backend which computes the plan reaches.
  explicit BatchPlan(BackendMemory scratch);

  // A piece of a request, whose `out` the plan decides.
  struct Piece {
    AttentionPiece piece;
    bool shadow = false;  // its rows are those of a shadow, packed as fp8
  };
  static constexpr size_t kNoGroup = SIZE_MAX;
  // The groups in which a request's pieces are.
  struct Groups {
    size_t exact = 0;
    size_t shadow = kNoGroup;  // the group of pieces over shadows, if it has some
  };

  // Whether Add has room for this request.
  bool HasRoom(const AttendRequest& request, const Geometry& geometry) const;
  // Whether the partials of the request's pieces do not fit the scratch at once. It is then
  // computed in rounds, some rows at a time, and no other request is added after it.
  static bool InRounds(const AttendRequest& request, const Geometry& geometry);
  // Adds a request of `work` multiply-adds, whose pieces are `pieces` in their order. Decides where
  // each piece's partial goes: straight into the reply, or into the scratch to be merged. Call
  // after HasRoom.
  Groups Add(const ReadyRequest& ready, const AttendRequest& request, std::span<const Piece> pieces,
             uint64_t work);
  void Clear();

  // Multiply-adds of all requests.
  uint64_t work() const { return work_; }
  // Whether ComputePlan gave up on a group because its time had passed.
  bool Expired(const Groups& groups) const {
    return groups_[groups.exact].expired ||
           (groups.shadow != kNoGroup && groups_[groups.shadow].expired);
  }

  // For ComputePlan.
  //
  // Pieces of one or many requests whose geometries attend alike.
  struct Group {
    AttentionShape shape;
    Instant deadline;      // the latest of its requests' deadlines
    bool expired = false;  // its pieces are not computed, or came too late
    std::vector<AttentionPiece> pieces;
  };
  // The request that is computed in rounds; without partials there is none.
  struct Rounds {
    size_t group = 0;
    struct Partial {
      size_t piece_begin = 0, piece_end = 0;  // in `pieces` and `levels`
      PartialView out;
    };
    MergeOrder order = MergeOrder::kTree;
    std::vector<Partial> partials;
    std::vector<AttentionPiece> pieces;
    std::vector<uint8_t> levels;
    std::vector<ConstPartialView> parts;  // the partials merged in the current round
  };
  std::span<Group> groups() { return std::span(groups_).first(group_count_); }
  // Drops the merges of expired groups, and returns the others. Parts are in the order of the
  // pieces.
  std::span<const MergeJob> LiveMerges();
  Rounds& rounds() { return rounds_; }

  // An f32 partial in the scratch, until the scratch is rewound or the plan cleared.
  PartialView TakeScratch(uint32_t row_count, uint32_t d_v);
  // The most rows of which the whole scratch takes one partial per piece. At least 1, because a
  // request has at most kPieceCountMax pieces.
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
  // Adds the pieces [piece_begin, piece_end) of a request, whose partial is `out`.
  void AddPartial(const AttendRequest& request, std::span<const Piece> pieces, size_t piece_begin,
                  size_t piece_end, const Groups& groups, uint32_t d_v, const PartialView& out);
  void AddRound(const AttendRequest& request, std::span<const Piece> pieces, size_t piece_begin,
                size_t piece_end, const PartialView& out);
  // The group for this shape, made if need be, of a request with this deadline.
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
