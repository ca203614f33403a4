#include "server/directory/tables/change_numbers.h"

#include <algorithm>
#include <utility>

namespace ckv {

void ChangeNumbers::Start(uint64_t folder_id, bool is_logged) {
  folder_id_ = folder_id;
  is_logged_ = is_logged;
  first_version_ = last_;
  AddGap({applied_, last_});
}

void ChangeNumbers::Replay(uint64_t number) { last_ = std::max({last_, applied_, number}); }

void ChangeNumbers::ReplayGap(const VersionGap& gap) {
  gaps_.Add(gap);
  last_ = std::max(last_, gap.until);
}

void ChangeNumbers::NoteApplied(uint64_t number) { applied_ = std::max(applied_, number); }

void ChangeNumbers::Raise(uint64_t number) {
  AddGap({last_, number});
  last_ = std::max(last_, number);
}

void ChangeNumbers::AddGap(const VersionGap& gap) {
  if (gap.until <= gap.after) return;
  gaps_.Add(gap);
  if (is_logged_) unsaved_gaps_.push_back(gap);
}

bool ChangeNumbers::IsForgotten(uint64_t folder_id, uint64_t number) const {
  return folder_id == folder_id_ && (number > last_ || gaps_.Has(number));
}

uint64_t ChangeNumbers::LastAssigned(uint64_t number) const {
  for (const VersionGap& gap : gaps_.all())
    if (gap.after < number && number <= gap.until) return gap.after;
  return number;
}

std::vector<VersionGap> ChangeNumbers::TakeUnsaved() { return std::exchange(unsaved_gaps_, {}); }

}  // namespace ckv
