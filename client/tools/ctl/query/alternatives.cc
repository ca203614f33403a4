#include "client/tools/ctl/query/alternatives.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl {
namespace {

// A cost over S decode steps: fixed + S x per_step.
struct Line {
  double fixed_us = 0;
  double per_step_us = 0;
};

// A cost of moving or making something once is fixed; all else is paid every step. With a
// selection, everything is.
Line LineOf(const v1::PrimitiveCost& cost, uint32_t steps, bool selected) {
  Line line;
  for (const v1::CostTerm& term : cost.terms()) {
    const bool once = cost.primitive() != "route" && !selected &&
                      (term.name() == "transfer" || term.name() == "splice" ||
                       term.name() == "prefill" || term.name() == "evict");
    if (once) line.fixed_us += term.microseconds();
  }
  line.per_step_us = (cost.total_us() - line.fixed_us) / steps;
  return line;
}

// From or up to how many steps `other` would be the cheaper one.
std::string BreakEven(const Line& choice, const Line& other) {
  const double slower_us = other.per_step_us - choice.per_step_us;
  const double dearer_us = other.fixed_us - choice.fixed_us;
  constexpr double kStepsMax = 1u << 20;
  if (slower_us < 0) {
    const double steps = std::floor(dearer_us / -slower_us) + 1;
    if (steps <= kStepsMax) {
      return absl::StrFormat("it would be faster from %d steps on", static_cast<int64_t>(steps));
    }
  } else if (slower_us > 0 && dearer_us < 0) {
    const double steps = std::min(std::ceil(-dearer_us / slower_us) - 1, kStepsMax);
    if (steps >= 1) {
      return absl::StrFormat("it would be faster up to %d %s", static_cast<int64_t>(steps),
                             steps == 1 ? "step" : "steps");
    }
  }
  return "it would be faster at no number of steps";
}

}  // namespace

std::vector<std::string> DescribeAlternatives(const v1::ExplainReply& reply, uint32_t steps,
                                              bool selected) {
  const v1::PrimitiveCost* choice = nullptr;
  for (const v1::PrimitiveCost& cost : reply.costs()) {
    if (cost.primitive() == reply.choice()) choice = &cost;
  }
  std::vector<std::string> sentences;
  for (const v1::PrimitiveCost& cost : reply.costs()) {
    if (&cost == choice) continue;
    if (!cost.offered() || choice == nullptr) {
      sentences.push_back(
          absl::StrFormat("%s is not offered: %s.", cost.primitive(), cost.reason()));
      continue;
    }
    sentences.push_back(absl::StrFormat(
        "%s takes %s longer than %s over %s; %s.", cost.primitive(),
        FormatMicroseconds(cost.total_us() - choice->total_us()), choice->primitive(),
        FormatCount(steps, "step"),
        BreakEven(LineOf(*choice, steps, selected), LineOf(cost, steps, selected))));
  }
  return sentences;
}

}  // namespace ckv::ctl
