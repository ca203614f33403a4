#include "client/prefetch/step_costs.h"

#include <algorithm>

namespace ckv {

absl::StatusOr<StepCost> StepCostOf(DecisionInput input) {
  // Requests in flight now are mostly the context's own call, and do not predict later ones.
  for (Candidate& candidate : input.candidates) candidate.in_flight = candidate.concurrent = 0;
  const Decision step = Decide(input);
  if (!step.cost(Primitive::kRoute).offered || !step.cost(Primitive::kFetch).offered)
    return absl::UnavailableError("no holder of a chunk can be asked");
  input.selected = 0;  // a prefetch takes whole chunks
  const Decision whole = Decide(input);
  const CostBreakdown& fetch = whole.cost(Primitive::kFetch);
  StepCost cost = {.route_us = step.cost(Primitive::kRoute).total_us,
                   .cached_us = step.cost(Primitive::kFetch).compute_us,
                   .prefetch_us = fetch.probe_us + fetch.transfer_us,
                   .prefill_token_us = std::nullopt};
  if (const CostBreakdown& local = whole.cost(Primitive::kLocal); local.offered)
    cost.prefill_token_us = local.prefill_us / double(input.tokens);
  return cost;
}

absl::StatusOr<ContextCost> StepCosts::Of(WatchedContext& watched, const CallShape& shape) {
  const ContextState& context = *watched.context;
  const bool old = options_->clock->Now() > watched.measured_at + kMeasuredAgeMax;
  ContextCost cost;
  // Parts are routed in parallel, but attended here one after another.
  for (uint32_t part = 0; part < context.corpora().size(); ++part) {
    PrefetcherTools::Work work;
    work.corpus = context.corpora()[part];
    work.query_rows = shape.call_row_count;
    work.selected = shape.selected;
    for (const ContextChunk& chunk : context.chunks()) {
      if (chunk.part == part) work.chunks.push_back(chunk.ordinal);
    }
    if (work.chunks.empty()) continue;
    absl::StatusOr<StepCost> of_part = tools_->cost(work);
    if (!of_part.ok() || old) {
      if (absl::Status status = Measure(watched, work); !status.ok()) return status;
      of_part = tools_->cost(work);
    }
    if (!of_part.ok()) return of_part.status();
    cost.same_bits &= tools_->same_target(work.corpus);
    cost.step.route_us = std::max(cost.step.route_us, of_part->route_us);
    cost.step.cached_us += of_part->cached_us;
    cost.step.prefetch_us += of_part->prefetch_us;
    cost.step.prefill_token_us = of_part->prefill_token_us;
  }
  return cost;
}

absl::Status StepCosts::Measure(WatchedContext& watched, const PrefetcherTools::Work& work) {
  const Instant begin = options_->clock->Now();
  if (begin < measure_again_) return absl::UnavailableError("a holder was too slow to be measured");
  watched.measured_at = begin;
  absl::Status status = tools_->measure(work, begin + options_->measure_timeout);
  const Instant end = options_->clock->Now();
  if (!status.ok()) measure_again_ = end + (end - begin) * kMeasureShare;
  return status;
}

}  // namespace ckv
