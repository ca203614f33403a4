// The work of one batch as plain values: pieces of attention in groups, and merges of their
// partials.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"
#include "server/batch/ready_request.h"
#include "transport/wire.h"

namespace ckv {

// The limit of multiply-adds in one batch of the polling thread, during which it serves nobody
// else. It is 256 rows of 1088 over 1900 tokens, or 7 ms of one core at 75 G/s. A larger request
// leaves that thread.
inline constexpr uint64_t kPollingWorkMax = uint64_t{1} << 29;

// The limit of pieces in one batch: four of the largest requests, or 64 requests of 64 chunks.
inline constexpr uint32_t kBatchPieceCountMax = 4 * kPieceCountMax;

// Memory for f32 partials that this holder merges before it answers. One partial has at most 4096
// rows x (1024 + 2) x 4 B = 16.8 MB. Seven of the largest fit, and rounds of merging need four. It
// is address space: pages are touched as requests need them.
inline constexpr size_t kMergeScratchBytes = size_t{128} << 20;

// Whether the request wants one partial per piece. If not, its pieces are merged into one.
inline bool PerPiece(const RequestHeader& header) { return (header.flags & kFlagPerPiece) != 0; }
inline bool WantsF32(const RequestHeader& header) { return (header.flags & kFlagPartialF32) != 0; }

// Filled by Batch with Add; worked off by ComputePlan, which marks groups as expired; read
// again for the replies; then cleared. Used by one thread at a time.
//
// How a request is cut depends on that request alone, never on what shares its batch, so its bits
// do not either (I2). Nothing is allocated after construction, except a group's list of pieces when
// a batch first has so many geometries.
class BatchPlan {
 public:
  explicit BatchPlan(uint32_t request_count_max);

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

  // Whether Add has room for a request of this header.
  bool HasRoom(const RequestHeader& header, const Geometry& geometry) const;
  // Whether the request's partials do not fit the scratch at once. It is then merged in rounds, and
  // no other request is added after it.
  bool InRounds(const RequestHeader& header, const Geometry& geometry) const;
  // Adds a request of `work` multiply-adds. Decides where each piece's partial goes: straight into
  // the reply, or into the scratch to be merged. Call after HasRoom.
  Groups Add(const ReadyRequest& ready, std::span<const Piece> pieces, uint64_t work);
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
  // A request whose pieces' partials become one.
  struct Merge {
    Groups groups;
    std::span<const ConstPartialView> parts;  // in the order of its pieces
    uint32_t row_count = 0;
    uint32_t d_v = 0;
    PartialView out;
  };
  // The request that is merged in rounds; without pieces there is none.
  struct Rounds {
    size_t group = 0;
    std::vector<AttentionPiece> pieces;
    std::vector<ConstPartialView> parts;  // the partials merged in the current round
    PartialView out;
  };
  std::span<Group> groups() { return std::span(groups_).first(group_count_); }
  std::vector<Merge>& merges() { return merges_; }
  Rounds& rounds() { return rounds_; }

  // An f32 partial in the scratch, until the scratch is rewound or the plan cleared.
  PartialView TakeScratch(uint32_t row_count, uint32_t d_v);
  // Partials of this size for which the scratch still has room.
  size_t ScratchRoom(uint32_t row_count, uint32_t d_v) const {
    return (kScratchFloats - scratch_used_) / PartialFloats(row_count, d_v);
  }
  size_t scratch_used() const { return scratch_used_; }
  void RewindScratch(size_t used) { scratch_used_ = used; }

 private:
  static constexpr size_t kScratchFloats = kMergeScratchBytes / sizeof(float);
  // Floats of one f32 partial, in whole cache lines.
  static constexpr size_t PartialFloats(uint32_t row_count, uint32_t d_v) {
    return (size_t{row_count} * (size_t{d_v} + 2) + 15) / 16 * 16;
  }
  // The group for this shape, made if need be, of a request with this deadline.
  size_t GroupFor(const AttentionShape& shape, Instant deadline);

  uint64_t work_ = 0;
  size_t piece_count_ = 0;
  std::vector<Group> groups_;  // the first group_count_ are in use
  size_t group_count_ = 0;
  std::vector<ConstPartialView> parts_;  // the merges' partials; never reallocated
  std::vector<Merge> merges_;
  Rounds rounds_;
  std::unique_ptr<float[]> scratch_;
  size_t scratch_used_ = 0;  // floats
};

}  // namespace ckv
