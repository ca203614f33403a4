#include "client/plan/layer_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv {

absl::StatusOr<RouteCall> LayerCallSegments::Take(const LayerCall& call, MemoryKind out_memory,
                                                  bool again, const ContextState* whole) {
  Clear();
  for (const Segment& segment : call.segments) {
    RouteSegment& taken = segments.emplace_back();
    taken.row_begin = segment.row_begin;
    taken.row_count = segment.row_count;
    taken.context = whole;
    taken.selection = segment.selection;
    taken.row_limits = segment.row_limits;
    taken.own = segment.own;
    if (whole != nullptr) continue;
    absl::Status status = TakeContext(segment, call.wire, again);
    if (status.ok()) status = TakeChoice(segment.choice);
    if (!status.ok()) {
      Clear();
      return status;
    }
  }
  UseKeptRows();
  return RouteCall{.layer = call.layer,
                   .q = call.q,
                   .segments = segments,
                   .wire = call.wire,
                   .precision = call.precision,
                   .allow_approximate = call.allow_approximate,
                   .trace = call.trace,
                   .deadline = call.deadline,
                   .out_memory = out_memory};
}

// Takes the context of the last segment, and its locally cached rows.
absl::Status LayerCallSegments::TakeContext(const Segment& segment, PartialDtype wire, bool again) {
  const size_t ordinal = segments.size() - 1;
  if (segment.context == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: segment %d has no context", ordinal));
  }
  const std::shared_ptr<ContextState>& state = segment.context->state_;
  if (state == nullptr || (!again && state->closed())) {
    return absl::FailedPreconditionError(
        absl::StrFormat("attend: the context of segment %d is closed", ordinal));
  }
  segments.back().context = state.get();
  // A call of f32 partials wants the bits of its holders.
  if (wire != PartialDtype::kF32 || state->cached_same_bits()) {
    if (std::shared_ptr<const LocalRowTable> rows = state->cached(); rows != nullptr) {
      segments.back().cached = rows.get();
      cached.push_back(std::move(rows));
    }
  }
  if (contexts.empty() || contexts.back() != state) contexts.push_back(state);
  return absl::OkStatus();
}

// Takes the choice of the last segment.
absl::Status LayerCallSegments::TakeChoice(const SegmentChoice& choice) {
  if (choice.rows == nullptr) return absl::OkStatus();
  if (choice.rows->state_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: the choice of segment %d is empty", segments.size() - 1));
  }
  RouteSegment& taken = segments.back();
  taken.choice = choice.rows->state_.get();
  taken.choice_token = choice.token_begin;
  taken.choice_group_rows = choice.group_rows;
  choices.push_back(choice.rows->state_);
  return absl::OkStatus();
}

bool LayerCallSegments::HasCandidates() const {
  return std::any_of(segments.begin(), segments.end(),
                     [](const RouteSegment& segment) { return segment.choice != nullptr; });
}

void LayerCallSegments::UseKeptRows() {
  for (RouteSegment& segment : segments) {
    const int32_t* const rows = segment.choice == nullptr ? nullptr : segment.choice->rows();
    if (rows == nullptr || !CheckChoice(segment).ok()) continue;
    const uint32_t k = segment.choice->query().k;
    segment.selection = {rows + size_t{segment.choice_token} * k, k, segment.choice_group_rows};
    segment.choice = nullptr;
  }
}

uint32_t RowChoice::token_count() const { return state_ == nullptr ? 0 : state_->token_count(); }

std::span<const uint32_t> RowChoice::own_rows(uint32_t token) const {
  return state_->own_rows(token);
}

LayerCall LayerCallOf(const AttendCall& call, Segment& segment) {
  segment = {.row_count = call.q.count,
             .context = nullptr,
             .selection = call.selection,
             .row_limits = call.row_limits};
  return {.layer = call.layer,
          .q = call.q,
          .segments = {&segment, 1},
          .wire = call.wire,
          .precision = call.precision,
          .allow_approximate = call.allow_approximate,
          .trace = call.trace,
          .deadline = call.deadline};
}

CallCorpora CorporaOf(const RouteCall& call) {
  CallCorpora corpora;
  for (const RouteSegment& segment : call.segments) {
    if (segment.context == nullptr) continue;
    for (const std::shared_ptr<const Corpus>& corpus : segment.context->corpora())
      corpora.push_back(corpus.get());
  }
  return corpora;
}

void Context::Close() {
  if (state_ != nullptr) state_->Close();
}

bool Context::is_open() const { return state_ != nullptr && !state_->closed(); }

const Geometry& Context::geometry() const { return state_->geometry(); }

uint64_t Context::token_count() const { return state_->token_count(); }

}  // namespace ckv
