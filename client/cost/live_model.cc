#include "client/cost/live_model.h"

#include <algorithm>
#include <limits>

namespace ckv {

LiveModel::LiveModel(const HolderId& holder, const SeedProfile* seed) : seed_(seed) {
  if (seed_ == nullptr || seed_->profile() == nullptr) return;
  for (size_t i = 1; i < kFabricKindEnd; ++i)
    lanes_[i] = seed_->profile()->Find(holder.name, FabricName(static_cast<FabricKind>(i)));
}

const LaneProfile* LiveModel::SeedOf(const Geometry& geometry, FabricKind fabric) const {
  const auto index = static_cast<size_t>(fabric);
  if (index >= kFabricKindEnd || lanes_[index] == nullptr) return nullptr;
  const KernelTargetId target = target_.load(std::memory_order_relaxed);
  const KernelTargetId measured = lanes_[index]->kernel_target;
  if (target != measured && target != KernelTargetId::kUnknown &&
      measured != KernelTargetId::kUnknown)
    return nullptr;
  return seed_->For(geometry) == nullptr ? nullptr : lanes_[index];
}

// Widths are below kRowWidthMax, which is 2^10: each takes 11 bits, and d_qk is never 0.
uint64_t LiveModel::KeyOf(const RowWidths& widths) {
  static_assert(kRowWidthMax < 1u << 11);
  return uint64_t{widths.d_qk} | uint64_t{widths.d_v} << 11 | uint64_t{widths.d_rope} << 22 |
         uint64_t{static_cast<uint8_t>(widths.dtype)} << 33;
}

const LiveModel::Fit* LiveModel::Find(const RowWidths& widths) const {
  const uint64_t key = KeyOf(widths);
  for (const Fit& fit : fits_) {
    const uint64_t known = fit.key.load(std::memory_order_acquire);
    if (known == key) return &fit;
    if (known == 0) return nullptr;
  }
  return nullptr;
}

LiveFactors LiveModel::points_factors(const RowWidths& widths) const {
  const Fit* const fit = Find(widths);
  return fit == nullptr ? LiveFactors() : fit->live.Get();
}

bool LiveModel::doubted(const RowWidths& widths) const {
  const Fit* const fit = Find(widths);
  return fit != nullptr && fit->doubted.load(std::memory_order_relaxed);
}

bool LiveModel::Doubt(const RowWidths& widths) {
  Fit* const fit = const_cast<Fit*>(Find(widths));
  return fit != nullptr && !fit->doubted.exchange(true, std::memory_order_relaxed);
}

KernelTime LiveModel::Fit::Time(std::span<const SharedRun> runs) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const MemoryFloor floor = {floor_us_per_token.load(kRelaxed), floor_shown_share.load(kRelaxed)};
  const double row_token_us = per_row_token_us.load(kRelaxed);
  KernelTimeSum call(base_us.load(kRelaxed));
  for (const SharedRun& run : runs)
    call.Add(OverFloor(0, row_token_us * run.rows * run.tokens, floor, run.tokens));
  return call.Get();
}

ComputeConstants LiveModel::ComputeFor(const RowWidths& widths,
                                       const std::optional<ComputeConstants>& measured,
                                       const LaneProfile* seed) const {
  ComputeConstants compute = measured.value_or(ComputeConstants{});
  const bool seeded = seed != nullptr && !seed->compute.empty();
  if (seeded) compute.curve = seed->compute;
  compute.live = seeded ? curve_factors() : points_factors(widths);
  return compute;
}

void LiveModel::SetMeasured(const RowWidths& widths, const ComputeConstants& measured) {
  const uint64_t key = KeyOf(widths);
  for (Fit& fit : fits_) {
    uint64_t known = 0;
    if (!fit.key.compare_exchange_strong(known, key, std::memory_order_acq_rel) && known != key)
      continue;
    bool changed = false;
    const auto set = [&changed](std::atomic<double>& to, double value) {
      changed |= to.exchange(value, std::memory_order_relaxed) != value;
    };
    set(fit.base_us, measured.base_us);
    set(fit.per_row_token_us, measured.per_row_token_us);
    set(fit.floor_us_per_token, measured.floor.us_per_token);
    set(fit.floor_shown_share, measured.floor.shown_share);
    if (changed) fit.live.Reset();
    fit.doubts.Clear();
    fit.doubted.store(false, std::memory_order_relaxed);
    return;
  }
}

LiveModel::Learned LiveModel::Observe(const AnsweredFrame& frame) {
  Learned learned;
  const LaneProfile* const seed = SeedOf(frame.geometry, frame.fabric);
  const bool seeded = seed != nullptr && !seed->compute.empty();
  Fit* const fit = seeded ? nullptr : const_cast<Fit*>(Find(frame.geometry.widths()));
  if (!seeded && fit == nullptr) return learned;
  const KernelTime time =
      seeded ? seed->compute.Time(frame.rows, frame.runs) : fit->Time(frame.runs);
  LiveKernel& live = seeded ? of_curve_ : fit->live;
  const double expected_us = time.Us(live.Get());
  if (!(expected_us > 0)) return learned;
  learned.expected_us = expected_us;
  // 0 means not reported, and the largest number means that time or longer.
  if (frame.compute_ns == 0 || frame.compute_ns == std::numeric_limits<uint32_t>::max())
    return learned;
  const double most_us = double(frame.compute_ns) / 1e3;
  const double least_us = frame.batch_share == 0 ? most_us : most_us * frame.batch_share / 255;
  const double us = std::clamp(expected_us, least_us, most_us);
  live.Observe(time, us);
  if (!seeded && fit->doubts.Add(expected_us, us))
    learned.doubted_now = !fit->doubted.exchange(true, std::memory_order_relaxed);
  return learned;
}

}  // namespace ckv
