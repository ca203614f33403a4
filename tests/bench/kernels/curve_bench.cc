// Question: how far off is a kernel's curve (client/cost/compute_curve.h), over cold rows and
// over cached ones, with and without a floor, and in other forms?
// Bound: the noise of the machine, some 3 % here.
//
// Kernel times are measured over a grid, pinned, as medians. Curves are fitted to some of them, of
// few query rows and of many, over 256 and 2048 tokens, as a calibration has them. The others, of
// 128 query rows and of 32768 tokens, are predicted from these. "error" is the mean of
// |model / measured - 1| over the grid, "worst" the largest.

#include <benchmark/benchmark.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attention/mla_partial.h"
#include "attention/precision.h"
#include "client/cost/compute_curve.h"
#include "client/cost/profile.h"
#include "client/paged/calibrate_here.h"
#include "tests/bench/floor.h"
#include "tests/bench/kernels/kernel_case.h"
#include "tests/support/named_geometry.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kRows[] = {1, 4, 16, 64, 128, 256};
constexpr uint32_t kTokens[] = {256, 2048, 32768};
// More than the caches of most machines hold: rows of these are never warm.
constexpr uint32_t kTokensUncached = 32768;
constexpr uint32_t kHeldOutRows = 128;

struct Measured {
  std::vector<ComputeSample> samples;
  double read_us_per_token = 0;  // a plain loop over rows in no cache
};

ComputeSample Measure(uint32_t rows, uint32_t tokens, bool cold, std::vector<double>& read_us) {
  Case c(rows, tokens);
  c.piece.precision = PrecisionOf(Precision::kDefault, PartialDtype::kBf16);
  WorkerPool pool(1);
  const auto memory = c.rows->bytes().first(c.row_bytes());
  std::vector<double> us;
  const int count = tokens < kTokensUncached ? 41 : 9;
  c.Seconds(pool);
  for (int i = 0; i < count; ++i) {
    if (cold) Flush(memory);
    us.push_back(1e6 * c.Seconds(pool));
    if (!cold) continue;
    Flush(memory);
    read_us.push_back(1e6 * double(memory.size()) / ReadRate(memory) / tokens);
  }
  return {double(rows), double(tokens), Median(us), cold};
}

// Measured once for each target.
const Measured& GridOf(const std::string& target) {
  static std::vector<std::pair<std::string, Measured>> known;
  for (const auto& [name, measured] : known) {
    if (name == target) return measured;
  }
  UseTarget(target);
  Measured measured;
  std::vector<double> read_us;
  for (const uint32_t tokens : kTokens) {
    for (const uint32_t rows : kRows) {
      for (const bool cold : {false, true})
        measured.samples.push_back(Measure(rows, tokens, cold, read_us));
    }
  }
  measured.read_us_per_token = Median(read_us);
  return known.emplace_back(target, measured).second;
}

bool IsAnchor(const ComputeSample& sample) {
  return sample.rows != kHeldOutRows && sample.tokens < kTokensUncached;
}

ComputeCurve CurveOf(const Measured& measured, std::function<bool(const ComputeSample&)> wanted) {
  std::vector<ComputeSample> samples;
  for (const ComputeSample& sample : measured.samples) {
    if (IsAnchor(sample) && wanted(sample)) samples.push_back(sample);
  }
  return FitComputeCurve(samples);
}

using Model = std::function<double(double rows, double tokens)>;

struct Error {
  double mean = 0, worst = 0;
};
Error ErrorOf(const Measured& measured, bool cold, const Model& model) {
  Error error;
  int count = 0;
  for (const ComputeSample& sample : measured.samples) {
    if (sample.cold != cold || (!cold && sample.tokens == kTokensUncached)) continue;
    const double off = std::abs(model(sample.rows, sample.tokens) / sample.us - 1);
    error.mean += off;
    error.worst = std::max(error.worst, off);
    ++count;
  }
  error.mean /= count;
  return error;
}

// The best floor of one share: 0 is max(u, f), 1 is u + f.
ComputeCurve WithShare(const Measured& measured, double share) {
  ComputeCurve best = CurveOf(measured, [](const ComputeSample&) { return true; });
  ComputeCurve curve = best;
  double least = 1e300;
  for (double floor_us = 0; floor_us < 0.5; floor_us += 5e-4) {
    curve.floor = {floor_us, share};
    double sum = 0;
    for (const ComputeSample& sample : measured.samples) {
      if (!sample.cold || !IsAnchor(sample)) continue;
      const double off = curve.Us(sample.rows, sample.tokens) / sample.us - 1;
      sum += off * off;
    }
    if (sum >= least) continue;
    least = sum;
    best = curve;
  }
  return best;
}

double UsAt(const Measured& measured, double rows, double tokens, bool cold) {
  for (const ComputeSample& sample : measured.samples) {
    if (sample.rows == rows && sample.tokens == tokens && sample.cold == cold) return sample.us;
  }
  return 0;
}

// As Explain computed it: two numbers of query rows over rows in a cache.
Model TwoPoints(const Measured& measured) {
  const double few_us = UsAt(measured, 1, 2048, false), many_us = UsAt(measured, 16, 2048, false);
  const double slope = std::max(0.0, (many_us - few_us) / (15 * 2048));
  const double base_us = std::max(0.0, few_us - 2048 * slope);
  return [=](double rows, double tokens) { return base_us + rows * tokens * slope; };
}

// As CalibrateHere computes it: the cost of a query row if there are many, and a floor.
Model HereWithFloor(const Measured& measured) {
  RequesterConstants here;
  here.attend_per_row_token_us = UsAt(measured, 64, 2048, true) / (64 * 2048);
  here.attend_floor.us_per_token = UsAt(measured, 1, 2048, true) / 2048;
  return [=](double rows, double tokens) { return AttendHereTime(here, rows, tokens).Us(); };
}

enum Form { kWithoutFloor, kMax, kSum, kCurve, kTwoPoints, kHere };

void Run(benchmark::State& state, const std::string& target, Form form) {
  const Measured& measured = GridOf(target);
  Model model;
  ComputeCurve curve;
  for (auto _ : state) {
    if (form == kWithoutFloor)
      curve = CurveOf(measured, [](const ComputeSample& sample) { return !sample.cold; });
    if (form == kMax) curve = WithShare(measured, 0);
    if (form == kSum) curve = WithShare(measured, 1);
    if (form == kCurve) curve = CurveOf(measured, [](const ComputeSample&) { return true; });
    model = form == kTwoPoints ? TwoPoints(measured)
            : form == kHere    ? HereWithFloor(measured)
                               : [&](double rows, double tokens) { return curve.Us(rows, tokens); };
  }
  const Error cold = ErrorOf(measured, true, model);
  state.counters["error"] = 100 * cold.mean;
  state.counters["worst"] = 100 * cold.worst;
  if (form < kTwoPoints) {
    ComputeCurve cached = curve;
    cached.floor = {};
    const Model warm = [&](double rows, double tokens) { return cached.Us(rows, tokens); };
    state.counters["error_in_cache"] = 100 * ErrorOf(measured, false, warm).mean;
    state.counters["floor_ns"] = 1e3 * curve.floor.us_per_token;
    state.counters["share"] = curve.floor.shown_share;
    state.counters["memory_rows"] = RowsBoundByMemory(curve);
  }
  state.counters["read_ns"] = 1e3 * measured.read_us_per_token;
  state.SetLabel(target);
}

// Compares the floor of a token in this host's constants (client/paged/calibrate_here.h) with a
// plain read of its row.
void RunHere(benchmark::State& state, const std::string& target) {
  UseTarget(target);
  const Measured& measured = GridOf(target);
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "bench";
  double floor_us = 0;
  for (auto _ : state) {
    std::vector<double> us;
    for (int i = 0; i < 9; ++i)
      us.push_back(CalibrateHere(geometry, *Clock::Real())->attend_floor.us_per_token);
    floor_us = Median(us);
  }
  state.counters["of_read"] = floor_us / measured.read_us_per_token;
  state.counters["read_ns"] = 1e3 * measured.read_us_per_token;
  state.SetLabel(target);
}

void Register() {
  constexpr std::pair<const char*, Form> kForms[] = {
      {"without_floor", kWithoutFloor}, {"max", kMax},  {"sum", kSum}, {"curve", kCurve},
      {"two_points", kTwoPoints},       {"here", kHere}};
  const std::pair<const char*, std::string> targets[] = {
      {"default", std::string(KernelTargets().front())}, {"vector", std::string(VectorTarget())}};
  for (const auto& [name, target] : targets) {
    for (const auto& [form_name, form] : kForms) {
      benchmark::RegisterBenchmark(
          (std::string("BM_Curve/") + name + "/" + form_name).c_str(),
          [target = target, form = form](benchmark::State& state) { Run(state, target, form); })
          ->Iterations(1);
    }
    benchmark::RegisterBenchmark(
        (std::string("BM_Here/") + name).c_str(),
        [target = target](benchmark::State& state) { RunHere(state, target); })
        ->Iterations(1);
  }
}

}  // namespace
}  // namespace ckv::bench

int main(int argc, char** argv) {
  // The last processor: interrupts are handled by the first.
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(std::max(1u, std::thread::hardware_concurrency()) - 1, &cpus);
  sched_setaffinity(0, sizeof(cpus), &cpus);  // if refused, the benchmark runs unpinned
  benchmark::Initialize(&argc, argv);
  ckv::bench::Register();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
