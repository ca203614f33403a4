#include "client/decide/live_model.h"

#include <limits>

#include "client/decide/cost_model.h"

namespace ckv {

LiveModel::LiveModel(const HolderId& holder, const SeedProfile* seed, const BusyPeriod* requests)
    : seed_(seed), requests_(requests) {
  if (seed_ == nullptr || seed_->profile() == nullptr) return;
  for (size_t i = 1; i < kFabricKindEnd; ++i)
    lanes_[i] = seed_->profile()->Find(holder.name, FabricName(static_cast<FabricKind>(i)));
}

const LaneProfile* LiveModel::SeedOf(const Geometry& geometry, FabricKind fabric) const {
  const auto index = static_cast<size_t>(fabric);
  if (index >= kFabricKindEnd || lanes_[index] == nullptr) return nullptr;
  return seed_->For(geometry) == nullptr ? nullptr : lanes_[index];
}

ComputeConstants LiveModel::ComputeFor(const std::optional<ComputeConstants>& measured,
                                       const LaneProfile* seed) const {
  ComputeConstants compute = measured.value_or(ComputeConstants{});
  const bool seeded = seed != nullptr && !seed->compute.empty();
  if (seeded) compute.curve = seed->compute;
  compute.live_factor = factor(seeded);
  return compute;
}

void LiveModel::SetMeasured(const ComputeConstants& measured) {
  const double base_us = base_us_.exchange(measured.base_us, std::memory_order_relaxed);
  const double per_row_token_us =
      per_row_token_us_.exchange(measured.per_row_token_us, std::memory_order_relaxed);
  if (base_us != measured.base_us || per_row_token_us != measured.per_row_token_us)
    of_points_.Reset();
}

double LiveModel::PredictUs(const LaneProfile* seed, double rows, double tokens) const {
  if (seed != nullptr && !seed->compute.empty()) return seed->compute.Us(rows, tokens);
  return base_us_.load(std::memory_order_relaxed) +
         per_row_token_us_.load(std::memory_order_relaxed) * rows * tokens;
}

void LiveModel::Observe(const AnsweredFrame& frame, const std::optional<FabricConstants>& fabric,
                        double queue_us, Clock& clock) {
  if (!requests_->LastWasAlone()) return;
  if (frame.compute_ns == std::numeric_limits<uint32_t>::max()) return;  // or longer
  const LaneProfile* const seed = SeedOf(frame.geometry, frame.fabric);
  const double predicted_us = PredictUs(seed, frame.rows, double(frame.tokens));
  if (!(predicted_us > 0)) return;
  LiveCompute& live = seed != nullptr && !seed->compute.empty() ? of_curve_ : of_points_;
  if (frame.whole && fabric) {
    // The kernel's time is known already: it goes in as a base, which costs no second look at the
    // curve.
    Candidate candidate;
    candidate.fabric = fabric;
    candidate.compute.base_us = predicted_us * live.Get();
    candidate.queue_us = queue_us;
    Workload work;
    work.rows = 1;
    work.exchange_bytes = double(frame.bytes);
    error_.Observe(RouteRound(work, candidate).total_us,
                   double((clock.Now() - frame.posted).count()) / 1e3);
  }
  live.Observe(predicted_us, double(frame.compute_ns) / 1e3);
}

}  // namespace ckv
