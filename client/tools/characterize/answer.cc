#include "client/tools/characterize/answer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

constexpr uint32_t kKernelRowsMin = 16;   // fewer rows may wait for memory
constexpr uint64_t kAnswerTokens = 2048;  // the budget of a selection, and the paper's chunk

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// How far two sizes are apart, as a ratio.
double Distance(double a, double b) { return std::abs(std::log(a / b)); }

// The fastest route among those nearest to the question.
const Sample* NearestRoute(const AnswerInput& input) {
  const Sample* best = nullptr;
  const auto rank = [&input](const Sample& sample) {
    return std::pair(Distance(double(sample.key.tokens), double(kAnswerTokens)),
                     Distance(double(sample.key.query_rows), double(input.heads)));
  };
  for (const Sample& sample : input.samples) {
    if (sample.key.sweep != Sweep::kRoute || sample.key.query_rows == 0 || sample.key.tokens == 0)
      continue;
    if (best == nullptr || rank(sample) < rank(*best) ||
        (rank(sample) == rank(*best) && sample.us < best->us))
      best = &sample;
  }
  return best;
}

std::string TimeText(double us) {
  if (us < 1e3) return absl::StrFormat("%.3g us", us);
  if (us < 1e6) return absl::StrFormat("%.3g ms", us / 1e3);
  return absl::StrFormat("%.3g s", us / 1e6);
}

}  // namespace

std::vector<Disturbance> DisturbancesOf(std::span<const Sample> samples) {
  std::map<std::string, std::vector<double>> spreads;
  for (const Sample& sample : samples) {
    if (!(sample.spread > 0)) continue;
    const SampleKey& key = sample.key;
    if (key.sweep == Sweep::kRoute) spreads["routes over " + key.fabric].push_back(sample.spread);
    if (key.sweep != Sweep::kHere) continue;
    if (key.query_rows == 1) spreads["reading rows here"].push_back(sample.spread);
    if (key.query_rows >= kKernelRowsMin) spreads["the kernel here"].push_back(sample.spread);
  }
  std::vector<Disturbance> disturbances;
  for (auto& [name, values] : spreads) {
    const double spread = MedianOf(std::move(values));
    if (spread > kSpreadMax) disturbances.push_back({name, spread});
  }
  return disturbances;
}

std::string DescribeDisturbances(std::span<const Disturbance> disturbances) {
  std::string text;
  for (const Disturbance& one : disturbances) {
    text += absl::StrFormat("%s%s: repeats differ by %.2g x (limit %.2g)", text.empty() ? "" : "; ",
                            one.name, one.spread, kSpreadMax);
  }
  return text;
}

std::string AnswerOf(const AnswerInput& input) {
  const Sample* route = NearestRoute(input);
  if (route == nullptr) return "";
  const SampleKey& key = route->key;
  const Sample* fetch = FindSample(input.samples, {Sweep::kFetch, key.fabric, 0, key.tokens, 1});
  const Sample* here = FindSample(input.samples, {Sweep::kHere, "", key.query_rows, key.tokens, 1});
  if (fetch == nullptr || here == nullptr) return "";
  const double step_us = route->us * input.layers, saved_us = step_us - here->us * input.layers;
  std::string text = absl::StrFormat(
      "Over %s, a decode step of %s (%d query rows, %d layers) over %d tokens elsewhere takes %s "
      "by "
      "routing. ",
      key.fabric, input.model, key.query_rows, input.layers, key.tokens, TimeText(step_us));
  if (saved_us <= 0) {
    return text + absl::StrFormat("A fetch takes %s and saves nothing later: always route.",
                                  TimeText(fetch->us));
  }
  return text +
         absl::StrFormat("A fetch takes %s and saves %s a step: it pays off after %.0f steps.",
                         TimeText(fetch->us), TimeText(saved_us), std::ceil(fetch->us / saved_us));
}

}  // namespace ckv
