#include "client/context/layer_call.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace ckv {

absl::StatusOr<RouteCall> LayerCallSegments::Take(const LayerCall& call, MemoryKind out_memory,
                                                  bool again) {
  Clear();
  for (const Segment& segment : call.segments) {
    const size_t ordinal = segments.size();
    if (segment.context == nullptr) {
      Clear();
      return absl::InvalidArgumentError(
          absl::StrFormat("attend: segment %d has no context", ordinal));
    }
    const std::shared_ptr<ContextState>& state = segment.context->state_;
    if (state == nullptr || (!again && state->closed())) {
      Clear();
      return absl::FailedPreconditionError(
          absl::StrFormat("attend: the context of segment %d is closed", ordinal));
    }
    // A call of f32 partials wants the bits of its holders.
    std::shared_ptr<const NearTable> near_rows;
    if (call.wire != PartialDtype::kF32 || state->near_same_bits()) near_rows = state->near();
    segments.push_back({.row_begin = segment.row_begin,
                        .row_count = segment.row_count,
                        .context = state.get(),
                        .selection = segment.selection,
                        .row_limits = segment.row_limits,
                        .own = segment.own,
                        .near = near_rows.get()});
    if (near_rows != nullptr) near.push_back(std::move(near_rows));
    if (contexts.empty() || contexts.back() != state) contexts.push_back(state);
  }
  return RouteCall{.layer = call.layer,
                   .q = call.q,
                   .segments = segments,
                   .wire = call.wire,
                   .grade = call.grade,
                   .allow_approximate = call.allow_approximate,
                   .trace = call.trace,
                   .deadline = call.deadline,
                   .out_memory = out_memory};
}

void LayerCallSegments::ForEachCorpus(const LayerCall& call,
                                      absl::FunctionRef<void(const Corpus&)> visit) {
  for (const Segment& segment : call.segments) {
    if (segment.context == nullptr || segment.context->state_ == nullptr) continue;
    for (const std::shared_ptr<const Corpus>& corpus : segment.context->state_->corpora())
      visit(*corpus);
  }
}

void ForEachCorpus(const RouteCall& call, absl::FunctionRef<void(const Corpus&)> visit) {
  for (const RouteSegment& segment : call.segments) {
    if (segment.context == nullptr) continue;
    for (const std::shared_ptr<const Corpus>& corpus : segment.context->corpora()) visit(*corpus);
  }
}

void Context::Close() {
  if (state_ != nullptr) state_->Close();
}

bool Context::is_open() const { return state_ != nullptr && !state_->closed(); }

const Geometry& Context::geometry() const { return state_->geometry(); }

uint64_t Context::token_count() const { return state_->token_count(); }

}  // namespace ckv
