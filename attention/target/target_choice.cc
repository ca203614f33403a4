#include "attention/target/target_choice.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

bool IsMeasured(const std::string& why_not, double rate) { return !why_not.empty() || rate > 0; }

// Whether a unit's rate is worth its kernel.
bool Pays(double rate, double f32_rate, double gain_min) { return rate >= gain_min * f32_rate; }

std::string Explain(std::string_view target, const std::string& why_not, double rate,
                    double f32_rate, double gain_min) {
  if (!why_not.empty()) return absl::StrFormat("no %s: %s", target, why_not);
  return absl::StrFormat("%s's %.0f GFLOP/s are %.1f x f32's %.0f (needs %.1f x)", target, rate,
                         f32_rate > 0 ? rate / f32_rate : 0, f32_rate, gain_min);
}

}  // namespace

TargetOrder OrderTargets(const KernelMachine& machine, const UnitRates& rates) {
  TargetOrder order;
  std::vector<std::string_view> slower;
  const auto add = [&](std::string_view target, const std::string& why_not, double rate,
                       double gain_min) {
    if (!order.reason.empty()) order.reason += "; ";
    order.reason += Explain(target, why_not, rate, rates.f32, gain_min);
    if (!why_not.empty()) return;
    (Pays(rate, rates.f32, gain_min) ? order.targets : slower).push_back(target);
  };
  add(kAmxTarget, machine.amx_why_not, rates.amx, kAmxGainMin);
  add(kDotTarget, machine.dot_why_not, rates.dot, kDotGainMin);
  order.targets.insert(order.targets.end(), machine.vector_targets.begin(),
                       machine.vector_targets.end());
  order.targets.insert(order.targets.end(), slower.begin(), slower.end());
  return order;
}

absl::Status CheckRecord(const KernelMachine& machine, const KernelRecord& record) {
  if (record.signature != machine.signature) {
    return absl::FailedPreconditionError(
        absl::StrFormat("it is of another machine or build, '%s', and this is '%s'",
                        record.signature, machine.signature));
  }
  const UnitRates& rates = record.rates;
  const bool has_unit = machine.amx_why_not.empty() || machine.dot_why_not.empty();
  if ((has_unit && !(rates.f32 > 0)) || !IsMeasured(machine.amx_why_not, rates.amx) ||
      !IsMeasured(machine.dot_why_not, rates.dot)) {
    return absl::FailedPreconditionError("it lacks the rate of a unit that this machine has");
  }
  const TargetOrder order = OrderTargets(machine, rates);
  if (std::find(order.targets.begin(), order.targets.end(), record.target) == order.targets.end()) {
    return absl::NotFoundError(
        absl::StrFormat("this machine has no kernel target '%s'", record.target));
  }
  if (order.targets.front() != record.target) {
    return absl::FailedPreconditionError(
        absl::StrFormat("it names %s, but by its rates this build chooses %s", record.target,
                        order.targets.front()));
  }
  return absl::OkStatus();
}

}  // namespace ckv
