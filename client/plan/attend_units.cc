// Lists what each segment of a call attends, as units of rows that attend the same chunks,
// or the same selected rows of them. Not thread-safe. Begin adds for each segment:
//   with row limits   AddLimited: a unit for consecutive groups with one limit. The chunk with the
//                     limit becomes a selection of its first rows
//   with a selection  AddGroups: a unit for each list of indices, once these are checked.
//                     ListTouched adds each chunk with a selected row
//   with a choice     AddChosen: a unit for each token. All chunks of holders with chosen rows,
//                     whichever have them, and local chunks with chosen rows
//   otherwise         AddDenseUnit: one unit of all chunks

#include "client/plan/attend_units.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

absl::Status BadIndex(const Selection& selection, uint32_t group, uint64_t token_count) {
  const int32_t* const list = selection.indices + size_t{group} * selection.k;
  for (uint32_t i = 0; i < selection.k; ++i) {
    if (list[i] == -1 || (list[i] >= 0 && uint64_t(list[i]) < token_count)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "attend: index %d of list %d is %d; the chunks have %d rows, and -1 is skipped", i, group,
        list[i], token_count));
  }
  return absl::InternalError("attend: an index changed while it was read");
}

absl::Status CheckIndexCount(uint64_t index_count) {
  if (index_count <= kSelectionIndexCountMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("attend: %d selected indices, limit %d",
                                                    index_count, kSelectionIndexCountMax));
}

absl::Status CheckChunkCount(uint32_t segment, uint64_t chunk_count) {
  if (chunk_count <= kAttendedChunkCountMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "attend: the segments up to %d attend %d chunks together, limit %d: make several calls",
      segment, chunk_count, kAttendedChunkCountMax));
}

}  // namespace

absl::Status AttendUnits::Begin(const RouteCall& call) {
  attended_.clear();
  units_.clear();
  selected_rows_.clear();
  first_rows_begin_ = first_rows_count_ = 0;
  index_count_ = look_count_ = 0;
  for (uint32_t i = 0; i < call.segments.size(); ++i) {
    const RouteSegment& segment = call.segments[i];
    if (segment.row_limits.present()) {
      CKV_RETURN_IF_ERROR(AddLimited(call, i));
      continue;
    }
    if (segment.choice != nullptr) {
      CKV_RETURN_IF_ERROR(AddChosen(call, i));
      continue;
    }
    if (!segment.selection.present()) {
      CKV_RETURN_IF_ERROR(CheckChunkCount(i, attended_.size() + segment.context->chunks().size()));
      AddDenseUnit(call, i);
      continue;
    }
    const uint32_t group_count = (segment.row_count - 1) / segment.selection.group_rows + 1;
    index_count_ += uint64_t{group_count} * segment.selection.k;
    CKV_RETURN_IF_ERROR(CheckIndexCount(index_count_));
    CKV_RETURN_IF_ERROR(AddGroups(call, i));
  }
  return absl::OkStatus();
}

void AttendUnits::AddDenseUnit(const RouteCall& call, uint32_t segment) {
  const RouteSegment& from = call.segments[segment];
  const auto begin = static_cast<uint32_t>(attended_.size());
  const auto count = static_cast<uint32_t>(from.context->chunks().size());
  for (uint32_t chunk = 0; chunk < count; ++chunk) attended_.push_back({.context_index = chunk});
  units_.push_back({.segment = segment,
                    .row_begin = from.row_begin,
                    .row_count = from.row_count,
                    .attended_begin = begin,
                    .attended_end = begin + count});
}

void AttendUnits::ReserveChunks(size_t chunk_count) {
  if (count_.size() >= chunk_count) return;
  count_.resize(chunk_count);
  cursor_.resize(chunk_count);
  touched_.resize(chunk_count / 64 + 1);
}

// Each group of rows with a list of its own is a unit, so that no list is padded.
absl::Status AttendUnits::AddGroups(const RouteCall& call, uint32_t segment) {
  const RouteSegment& from = call.segments[segment];
  ReserveChunks(from.context->chunks().size());
  const uint32_t group_rows = from.selection.group_rows;
  for (uint32_t row = 0, group = 0; row < from.row_count; ++group) {
    const uint32_t row_count = std::min(group_rows, from.row_count - row);
    CKV_RETURN_IF_ERROR(AddGroup(call, segment, from.row_begin + row, row_count, group));
    row += row_count;
  }
  return absl::OkStatus();
}

absl::Status AttendUnits::AddGroup(const RouteCall& call, uint32_t segment, uint32_t row_begin,
                                   uint32_t row_count, uint32_t group) {
  const ContextState& context = *call.segments[segment].context;
  const Selection& selection = call.segments[segment].selection;
  const int32_t* const list = selection.indices + size_t{group} * selection.k;
  const auto limit = static_cast<uint32_t>(std::min<uint64_t>(context.token_count(), 1u << 31));
  bool good = true;
  for (uint32_t i = 0; i < selection.k; ++i)
    good &= static_cast<uint32_t>(list[i]) < limit || list[i] == -1;
  if (!good) return BadIndex(selection, group, context.token_count());

  places_.clear();
  for (uint32_t i = 0; i < selection.k; ++i) {
    if (list[i] == -1) continue;
    const ContextState::RowPlace place = context.Find(static_cast<uint32_t>(list[i]));
    ++count_[place.chunk];
    touched_[place.chunk / 64] |= uint64_t{1} << place.chunk % 64;
    places_.push_back(place);
  }
  const auto begin = static_cast<uint32_t>(attended_.size());
  PlannedUnit& unit = units_.emplace_back(PlannedUnit{.segment = segment,
                                                      .row_begin = row_begin,
                                                      .row_count = row_count,
                                                      .attended_begin = begin,
                                                      .attended_end = begin});
  ListTouched(unit, places_);
  return absl::OkStatus();
}

// Consecutive groups with one limit are a unit.
absl::Status AttendUnits::AddLimited(const RouteCall& call, uint32_t segment) {
  const RouteSegment& from = call.segments[segment];
  const RowLimits& limits = from.row_limits;
  const uint64_t token_count = from.context->token_count();
  look_count_ = std::max<uint64_t>(look_count_, attended_.size());
  for (uint32_t row = 0, group = 0; row < from.row_count;) {
    const uint32_t limit = limits.limits[group];
    if (limit > token_count) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "attend: row limit %d is %d; the chunks have %d rows", group, limit, token_count));
    }
    PlannedUnit unit = {.segment = segment, .row_begin = from.row_begin + row, .limited = true};
    do {
      const uint32_t rows = std::min(limits.group_rows, from.row_count - row);
      unit.row_count += rows;
      row += rows;
      ++group;
    } while (row < from.row_count && limits.limits[group] == limit);
    CKV_RETURN_IF_ERROR(AddLimitedUnit(call, unit, limit));
  }
  return absl::OkStatus();
}

// Chunks before the limit are attended: whole if it does not cut them, else by their first rows.
absl::Status AttendUnits::AddLimitedUnit(const RouteCall& call, PlannedUnit unit, uint32_t limit) {
  const ContextState& context = *call.segments[unit.segment].context;
  const std::span<const ContextChunk> chunks = context.chunks();
  unit.attended_begin = static_cast<uint32_t>(attended_.size());
  // A context may list chunks in another order than the tree's. Then chunks beyond the limit may be
  // between visible ones.
  for (uint32_t chunk = 0, left = limit; left > 0; ++chunk) {
    CKV_RETURN_IF_ERROR(CheckChunkCount(unit.segment, ++look_count_));
    const uint64_t first = context.first_row(chunk);
    if (first >= limit) continue;
    const auto seen =
        static_cast<uint32_t>(std::min<uint64_t>(limit - first, chunks[chunk].token_count));
    left -= seen;
    if (seen == chunks[chunk].token_count) {
      attended_.push_back({.context_index = chunk});
      continue;
    }
    index_count_ += seen;
    CKV_RETURN_IF_ERROR(CheckIndexCount(index_count_));
    attended_.push_back({.context_index = chunk, .index_begin = FirstRows(seen), .k = seen});
  }
  unit.attended_end = static_cast<uint32_t>(attended_.size());
  units_.push_back(unit);
  return absl::OkStatus();
}

absl::Status AttendUnits::AddChosen(const RouteCall& call, uint32_t segment) {
  const RouteSegment& from = call.segments[segment];
  const size_t chunk_count = from.context->chunks().size();
  ReserveChunks(chunk_count);
  for (uint32_t row = 0, token = from.choice_token; row < from.row_count; ++token) {
    CKV_RETURN_IF_ERROR(CheckChunkCount(segment, attended_.size() + chunk_count));
    const uint32_t row_count = std::min(from.choice_group_rows, from.row_count - row);
    AddChosenUnit(call, {.segment = segment,
                         .row_begin = from.row_begin + row,
                         .row_count = row_count,
                         .chosen = true,
                         .token = token});
    row += row_count;
  }
  return absl::OkStatus();
}

// The chunks in which a holder's chosen rows are is not known, so all of its chunks are attended.
void AttendUnits::AddChosenUnit(const RouteCall& call, PlannedUnit unit) {
  const ContextState& context = *call.segments[unit.segment].context;
  const RowChoiceState& choice = *call.segments[unit.segment].choice;
  places_.clear();
  for (const uint32_t row : choice.local_rows(unit.token)) {
    const ContextState::RowPlace place = context.Find(row);
    ++count_[place.chunk];
    places_.push_back(place);
  }
  chosen_left_.clear();
  for (uint32_t s = 0; s < choice.source_count(); ++s)
    chosen_left_.push_back(choice.candidates(unit.token, s).count);
  auto index_begin = static_cast<uint32_t>(selected_rows_.size());
  selected_rows_.resize(selected_rows_.size() + places_.size());
  unit.attended_begin = static_cast<uint32_t>(attended_.size());
  for (uint32_t chunk = 0; chunk < context.chunks().size(); ++chunk) {
    const uint32_t source = choice.source_of(chunk);
    if (!choice.is_local(source)) {
      if (choice.candidates(unit.token, source).count == 0) continue;
      attended_.push_back({.context_index = chunk,
                           .index_begin = kChosen,
                           .k = std::exchange(chosen_left_[source], 0)});
    } else if (count_[chunk] != 0) {
      attended_.push_back({.context_index = chunk, .index_begin = index_begin, .k = count_[chunk]});
      cursor_[chunk] = index_begin;
      index_begin += std::exchange(count_[chunk], 0);
    }
  }
  unit.attended_end = static_cast<uint32_t>(attended_.size());
  for (const ContextState::RowPlace& place : places_)
    selected_rows_[cursor_[place.chunk]++] = static_cast<int32_t>(place.row);
  units_.push_back(unit);
}

// Returns where selected_rows_ has 0 .. count - 1.
uint32_t AttendUnits::FirstRows(uint32_t count) {
  if (count > first_rows_count_) {
    first_rows_begin_ = static_cast<uint32_t>(selected_rows_.size());
    first_rows_count_ = std::max(count, 2 * first_rows_count_);
    selected_rows_.resize(selected_rows_.size() + first_rows_count_);
    std::iota(selected_rows_.begin() + first_rows_begin_, selected_rows_.end(), 0);
  }
  return first_rows_begin_;
}

// Adds each chunk with a bit in touched_, in their order, and puts the chosen rows of
// each one after another. Leaves count_ and touched_ zero.
void AttendUnits::ListTouched(PlannedUnit& unit, std::span<const ContextState::RowPlace> places) {
  if (places.empty()) return;
  auto index_begin = static_cast<uint32_t>(selected_rows_.size());
  selected_rows_.resize(selected_rows_.size() + places.size());
  size_t left = places.size();
  for (uint32_t word = 0; left > 0; ++word) {
    for (uint64_t bits = touched_[word]; bits != 0; bits &= bits - 1) {
      const uint32_t chunk = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      attended_.push_back({.context_index = chunk, .index_begin = index_begin, .k = count_[chunk]});
      cursor_[chunk] = index_begin;
      index_begin += count_[chunk];
      left -= count_[chunk];
      count_[chunk] = 0;
    }
    touched_[word] = 0;
  }
  for (const ContextState::RowPlace& place : places)
    selected_rows_[cursor_[place.chunk]++] = static_cast<int32_t>(place.row);
  unit.attended_end = static_cast<uint32_t>(attended_.size());
}

}  // namespace ckv
