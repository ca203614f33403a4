#include "client/cost/profile.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace ckv {
namespace {

// More than a core's own caches hold; 1 ms a copy at 4 GB/s.
constexpr size_t kCopyBytes = size_t{4} << 20;
constexpr int kCopyRunCount = 5;

}  // namespace

KernelTime AttendHereTime(const RequesterConstants& here, double rows, double tokens) noexcept {
  if (!here.attend.empty()) return here.attend.Time(rows, tokens);
  if (!(rows > 0) || !(tokens > 0)) return {};
  const double per_row_token_us = here.attend_per_row_token_us;
  const double compute_us = per_row_token_us > 0 ? rows * (tokens * per_row_token_us) : 0;
  return OverFloor(0, compute_us, here.attend_floor, tokens);
}

KernelTime AttendHereTime(const RequesterConstants& here, double rows,
                          std::span<const SharedRun> runs) noexcept {
  if (!here.attend.empty()) return here.attend.Time(rows, runs);
  KernelTimeSum call(/*fixed_us=*/0);
  for (const SharedRun& run : runs) call.Add(AttendHereTime(here, run.rows, run.tokens));
  return call.Get();
}

void LiveFabric::Set(const FabricConstants& constants, bool bandwidth_fixed) {
  t_probe_us_.store(constants.t_probe_us, std::memory_order_relaxed);
  bandwidth_fixed_.store(bandwidth_fixed, std::memory_order_relaxed);
  bandwidth_bytes_per_s_.store(
      std::clamp(constants.bandwidth_bytes_per_s, kBandwidthMin, kBandwidthMax),
      std::memory_order_relaxed);
  small_.Clear();
  large_.Clear();
  doubts_.Clear();
  doubted_.store(false, std::memory_order_relaxed);
}

std::optional<FabricConstants> LiveFabric::Get() const {
  const double bandwidth = bandwidth_bytes_per_s_.load(std::memory_order_relaxed);
  if (!(bandwidth > 0)) return std::nullopt;
  return FabricConstants{t_probe_us_.load(std::memory_order_relaxed), bandwidth};
}

bool LiveFabric::Observe(uint64_t bytes, double us) {
  const std::optional<FabricConstants> known = Get();
  if (!known || !(us > 0)) return false;
  if (requests_ != nullptr && !requests_->LastWasAlone()) return false;
  const double t_probe_us = known->t_probe_us;
  const double moving_us = double(bytes) / known->bandwidth_bytes_per_s * 1e6;
  const bool fixed = bandwidth_fixed_.load(std::memory_order_relaxed);
  // The remainder after subtracting the other part counts as at least a tenth of the time. If a
  // request took less than the other part alone should, the difference would be noise.
  if (bytes <= kSmallBytesMax) {
    StepProbe(t_probe_us, us);
  } else if (bytes < kLargeBytesMin && moving_us < t_probe_us) {
    StepProbe(t_probe_us, std::max(us - moving_us, us / 10));
  } else if (!fixed) {
    StepBandwidth(known->bandwidth_bytes_per_s, std::max(us - t_probe_us, us / 10) / double(bytes));
  }
  const double expected_us = t_probe_us + moving_us;
  if (!doubts_.Add(expected_us, std::min(us, expected_us))) return false;
  return !doubted_.exchange(true, std::memory_order_relaxed);
}

void LiveFabric::StepProbe(double known_us, double us) {
  if (const auto t_probe_us = small_.Add(us))
    t_probe_us_.store(LiveStep(known_us, *t_probe_us), std::memory_order_relaxed);
}

void LiveFabric::StepBandwidth(double known_bytes_per_s, double us_per_byte) {
  if (const auto best = large_.Add(us_per_byte)) {
    bandwidth_bytes_per_s_.store(
        std::clamp(LiveStep(known_bytes_per_s, 1e6 / *best), kBandwidthMin, kBandwidthMax),
        std::memory_order_relaxed);
  }
}

double CopyBandwidth(Clock& clock) {
  const std::vector<std::byte> from(kCopyBytes, std::byte{1});
  std::vector<std::byte> to(kCopyBytes);
  Duration fastest = Duration::max();
  for (int i = 0; i < kCopyRunCount; ++i) {
    const Instant begin = clock.Now();
    std::memcpy(to.data(), from.data(), kCopyBytes);
    fastest = std::min(fastest, clock.Now() - begin);
  }
  const double us = double(fastest.count()) / 1e3;
  return us > 0 ? kCopyBytes / us * 1e6 : LiveFabric::kBandwidthMax;
}

}  // namespace ckv
