// The epochs that a directory assigns, from blocks whose end is durable.
//
// A block is reserved by a change in the log. So no epoch is assigned twice, and a registration
// mostly does not wait for the disk. While the disk fails, epochs continue beyond the block. The
// next incarnation then starts at the wall clock, and above the previous epochs that its members
// report.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/corpus.h"

namespace ckv {

// Not thread-safe: its owner's lock guards it.
class EpochBlocks {
 public:
  // Epochs whose end is made durable at once: enough for a registration of every member. A start
  // leaves the rest of a block unused, so a block is not longer. Epochs thus stay near the clock's
  // milliseconds, which a directory that lost its disk starts with.
  static constexpr uint64_t kBlockSize = kMemberCountMax;
  // The next block is reserved when fewer are left.
  static constexpr uint64_t kLeftMin = kBlockSize / 4;

  // All epochs are above `first_epoch`.
  explicit EpochBlocks(uint64_t first_epoch) : first_(first_epoch), last_(first_epoch) {}

  // Replays the end of a block from the log.
  void Replay(uint64_t epoch_max);
  // Records the epoch that a member had before, or 0. A directory that lost its disk begins at the
  // wall clock, which may be behind. Ignores an epoch that is kNumberLeapMax ahead.
  void NotePrevious(Epoch before);
  // Returns whether a member's previous epoch came from an earlier incarnation.
  bool saw_earlier_incarnation() const { return saw_earlier_incarnation_; }

  // Returns the next epoch.
  Epoch Assign() { return {++last_}; }
  // Returns whether the next epoch is in the durable block.
  bool IsLeft() const { return durable_max_ > last_; }
  // Returns whether the next block must be reserved.
  bool IsLow() const { return durable_max_ < last_ + kLeftMin; }

  // Begins to reserve the next block and returns its end. Returns 0 if a reservation is in
  // progress.
  uint64_t BeginReservation();
  // Ends the reservation. With an OK status, the block up to `epoch_max` is durable.
  void Settle(uint64_t epoch_max, const absl::Status& status);
  bool is_reserving() const { return is_reserving_; }
  // Returns how the last reservation ended.
  const absl::Status& reserved() const { return reserved_; }

  // No higher epoch was assigned or reserved.
  uint64_t highest() const { return durable_max_ > last_ ? durable_max_ : last_; }

 private:
  const uint64_t first_;
  uint64_t last_;             // the last assigned epoch
  uint64_t durable_max_ = 0;  // the durable end of the block
  bool saw_earlier_incarnation_ = false;
  bool is_reserving_ = false;
  absl::Status reserved_;
};

}  // namespace ckv
