// The numbers of a directory's changes: corpus versions and drop numbers, in one sequence.

#pragma once

#include <cstdint>
#include <vector>

#include "server/directory/log/change.h"
#include "server/directory/tables/version_gaps.h"

namespace ckv {

// A reported epoch or version may exceed the last one here by at most this: 35 years of
// milliseconds. So no member can exhaust the numbers.
inline constexpr uint64_t kNumberLeapMax = uint64_t{1} << 40;

// Not thread-safe: its owner's lock guards it.
class ChangeNumbers {
 public:
  // All numbers are above `first`.
  explicit ChangeNumbers(uint64_t first) : last_(first) {}

  // Begins an incarnation after the replay. `folder_id` is not 0. With `is_logged`, gaps must be
  // saved in the log.
  void Start(uint64_t folder_id, bool is_logged);
  // Returns the folder's id, or 0 before Start.
  uint64_t folder_id() const { return folder_id_; }
  bool is_logged() const { return is_logged_; }

  // Returns the next number.
  uint64_t Next() { return ++last_; }
  uint64_t last() const { return last_; }
  // The versions of this incarnation are above it.
  uint64_t first_version() const { return first_version_; }

  // Replays a number from the log, or a gap.
  void Replay(uint64_t number);
  void ReplayGap(const VersionGap& gap);
  // Records that the change of this number is applied.
  void NoteApplied(uint64_t number);
  // The highest number, assigned by this folder, of an applied change.
  uint64_t applied() const { return applied_; }

  // Raises the last number to at least this one. Records the numbers between as not assigned.
  void Raise(uint64_t number);
  // Returns whether the number was not assigned here. A corpus of that version was rebuilt from
  // reports.
  bool IsInGap(uint64_t number) const { return gaps_.Has(number); }
  // Returns whether this folder assigned the number in an incarnation that it has lost.
  bool IsForgotten(uint64_t folder_id, uint64_t number) const;
  // Returns the number, or the last one assigned before it if it is in a gap.
  uint64_t LastAssigned(uint64_t number) const;

  const std::vector<VersionGap>& gaps() const { return gaps_.all(); }
  // Returns the gaps that are not in the log yet, and removes them from this list.
  std::vector<VersionGap> TakeUnsaved();
  // Records that a gap was not saved: it is saved before the next change.
  void NoteUnsaved(const VersionGap& gap) { unsaved_gaps_.push_back(gap); }

 private:
  void AddGap(const VersionGap& gap);

  uint64_t last_;
  uint64_t folder_id_ = 0;
  bool is_logged_ = false;
  uint64_t first_version_ = 0;
  uint64_t applied_ = 0;
  VersionGaps gaps_;
  std::vector<VersionGap> unsaved_gaps_;  // not in the log yet
};

}  // namespace ckv
