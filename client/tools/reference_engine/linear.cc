// Products of rows with a weight matrix. RunLinears divides the jobs: those whose weights are exact
// in bf16 use the matrix unit if there is one, the others the vector kernel. Both cut the output
// columns into tasks for the pool. The sum of one output runs over its inputs in order, in one
// accumulator, so its bits depend neither on other rows nor on the number of threads.

#include "client/tools/reference_engine/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "client/tools/reference_engine/linear.cc"
#include "hwy/foreach_target.h"  // includes this file once per SIMD target
#include "hwy/highway.h"
// Highway wants its headers before ours are included again.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "attention/bf16.h"
#include "attention/dense.h"
#include "proto/base/status.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A vector of at most 16 lanes, so that two of them always divide a panel of 32 columns.
using Lanes = hn::CappedTag<float, 16>;

// 6 rows x 2 vectors: 12 accumulators hide the latency of 2 x 4 multiply-adds, and with 2 weights
// and 1 broadcast they fit the 16 registers of AVX2.
HWY_ATTR void SixRows(const float* HWY_RESTRICT x, size_t x_stride, const float* HWY_RESTRICT w,
                      uint32_t input, float* HWY_RESTRICT y, size_t y_stride) {
  const Lanes d;
  const size_t n = hn::Lanes(d);
  auto a0 = hn::Zero(d), b0 = hn::Zero(d), a1 = hn::Zero(d), b1 = hn::Zero(d);
  auto a2 = hn::Zero(d), b2 = hn::Zero(d), a3 = hn::Zero(d), b3 = hn::Zero(d);
  auto a4 = hn::Zero(d), b4 = hn::Zero(d), a5 = hn::Zero(d), b5 = hn::Zero(d);
  for (uint32_t k = 0; k < input; ++k, w += Linear::kPanelColumns) {
    const auto wa = hn::LoadU(d, w);
    const auto wb = hn::LoadU(d, w + n);
    auto v = hn::Set(d, x[k]);
    a0 = hn::MulAdd(v, wa, a0);
    b0 = hn::MulAdd(v, wb, b0);
    v = hn::Set(d, x[k + x_stride]);
    a1 = hn::MulAdd(v, wa, a1);
    b1 = hn::MulAdd(v, wb, b1);
    v = hn::Set(d, x[k + 2 * x_stride]);
    a2 = hn::MulAdd(v, wa, a2);
    b2 = hn::MulAdd(v, wb, b2);
    v = hn::Set(d, x[k + 3 * x_stride]);
    a3 = hn::MulAdd(v, wa, a3);
    b3 = hn::MulAdd(v, wb, b3);
    v = hn::Set(d, x[k + 4 * x_stride]);
    a4 = hn::MulAdd(v, wa, a4);
    b4 = hn::MulAdd(v, wb, b4);
    v = hn::Set(d, x[k + 5 * x_stride]);
    a5 = hn::MulAdd(v, wa, a5);
    b5 = hn::MulAdd(v, wb, b5);
  }
  const auto store = [&](auto a, auto b, size_t row) HWY_ATTR {
    hn::StoreU(a, d, y + row * y_stride);
    hn::StoreU(b, d, y + row * y_stride + n);
  };
  store(a0, b0, 0);
  store(a1, b1, 1);
  store(a2, b2, 2);
  store(a3, b3, 3);
  store(a4, b4, 4);
  store(a5, b5, 5);
}

HWY_ATTR void OneRow(const float* HWY_RESTRICT x, const float* HWY_RESTRICT w, uint32_t input,
                     float* HWY_RESTRICT y) {
  const Lanes d;
  const size_t n = hn::Lanes(d);
  auto a = hn::Zero(d), b = hn::Zero(d);
  for (uint32_t k = 0; k < input; ++k, w += Linear::kPanelColumns) {
    const auto v = hn::Set(d, x[k]);
    a = hn::MulAdd(v, hn::LoadU(d, w), a);
    b = hn::MulAdd(v, hn::LoadU(d, w + n), b);
  }
  hn::StoreU(a, d, y);
  hn::StoreU(b, d, y + n);
}

// Columns [column, column + 2 vectors) of one panel, all rows.
//   x  f32 [rows] rows of `input` values     w  f32 [input][kPanelColumns] at `column`
//   y  f32 [rows] rows, 2 vectors written of each
HWY_ATTR void PanelPart(const float* x, size_t x_stride, const float* w, uint32_t input, float* y,
                        size_t y_stride, uint32_t rows) {
  uint32_t row = 0;
  for (; row + 6 <= rows; row += 6) {
    SixRows(x + row * x_stride, x_stride, w, input, y + row * y_stride, y_stride);
  }
  for (; row < rows; ++row) OneRow(x + row * x_stride, w, input, y + row * y_stride);
}

HWY_ATTR void RunPanel(const LinearJob& job, uint32_t panel, uint32_t rows) {
  constexpr uint32_t kColumns = Linear::kPanelColumns;
  const Linear& linear = *job.linear;
  const uint32_t first = panel * kColumns;
  const uint32_t width = std::min(kColumns, linear.output() - first);
  const uint32_t step = static_cast<uint32_t>(2 * hn::Lanes(Lanes()));
  for (uint32_t column = 0; column < width; column += step) {
    const float* w = linear.panel(panel) + column;
    float* y = job.y + first + column;
    if (column + step <= width) {
      PanelPart(job.x, job.x_stride, w, linear.input(), y, job.y_stride, rows);
      continue;
    }
    // The last columns of a matrix whose width is no multiple of two vectors.
    std::array<float, kColumns> whole;
    for (uint32_t row = 0; row < rows; ++row) {
      OneRow(job.x + row * job.x_stride, w, linear.input(), whole.data());
      std::memcpy(y + row * job.y_stride, whole.data(), (width - column) * sizeof(float));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ckv {
namespace {

HWY_EXPORT(RunPanel);

// Below 8 rows a panel of 256 x 32 weights takes a few microseconds, as long as waking a thread.
void RunTasks(uint32_t count, uint32_t rows, WorkerPool& pool,
              absl::FunctionRef<void(uint32_t, uint32_t)> task) {
  if (rows >= 8 && pool.thread_count() > 1) return pool.Run(count, task);
  for (uint32_t i = 0; i < count; ++i) task(i, 0);
}

// Output columns of a task on the matrix unit. Each task splits its input rows into terms again.
constexpr uint32_t kUnitColumns = 512;

struct UnitTask {
  const LinearJob* job;
  uint32_t row;
  uint32_t column;
};

void RunOnUnit(const UnitTask& task, uint32_t rows, std::span<std::byte> scratch) {
  const Linear& linear = *task.job->linear;
  const size_t steps = (size_t{linear.input()} + 31) / 32;
  const DenseCall call = {.x = task.job->x + task.row * task.job->x_stride,
                          .x_stride = task.job->x_stride,
                          .rows = std::min(kDenseRowsMax, rows - task.row),
                          .weights = linear.packed().data() + task.column / 16 * steps * 256,
                          .input = linear.input(),
                          .output = std::min(kUnitColumns, linear.output() - task.column),
                          .y = task.job->y + task.row * task.job->y_stride + task.column,
                          .y_stride = task.job->y_stride};
  RunDense(call, scratch);
}

void RunOnUnit(std::span<const LinearJob> jobs, uint32_t rows, WorkerPool& pool) {
  std::vector<UnitTask> tasks;
  for (const LinearJob& job : jobs) {
    for (uint32_t row = 0; row < rows; row += kDenseRowsMax) {
      for (uint32_t column = 0; column < job.linear->output(); column += kUnitColumns)
        tasks.push_back({&job, row, column});
    }
  }
  RunTasks(static_cast<uint32_t>(tasks.size()), rows, pool, [&](uint32_t task, uint32_t worker) {
    RunOnUnit(tasks[task], rows, pool.scratch(worker));
  });
}

}  // namespace

Linear::Linear(uint32_t input, uint32_t output, std::span<const float> weights)
    : input_(input),
      output_(output),
      panel_count_((output + kPanelColumns - 1) / kPanelColumns),
      panels_(size_t{panel_count_} * input * kPanelColumns) {
  CKV_CHECK(input > 0 && output > 0 && weights.size() == size_t{input} * output);
  for (uint32_t k = 0; k < input; ++k) {
    for (uint32_t n = 0; n < output; ++n) {
      const size_t panel = n / kPanelColumns;
      panels_[(panel * input + k) * kPanelColumns + n % kPanelColumns] =
          weights[size_t{k} * output + n];
    }
  }
  std::vector<uint16_t> bits(weights.size());
  Bf16FromFloats(weights.data(), bits.data(), bits.size());
  const auto same = [](float weight, uint16_t rounded) { return weight == FloatFromBf16(rounded); };
  if (input <= kDenseInputMax &&
      std::equal(weights.begin(), weights.end(), bits.begin(), bits.end(), same))
    packed_ = PackDenseWeights(input, output, bits);
}

void RunLinears(std::span<const LinearJob> jobs, uint32_t rows, WorkerPool& pool) noexcept {
  if (rows == 0) return;
  // Each job takes the unit or not by its own weights, whatever else is in the call.
  std::vector<LinearJob> on_unit, on_vectors;
  for (const LinearJob& job : jobs) {
    const bool takes_unit = HasDenseUnit() && !job.linear->packed().empty();
    (takes_unit ? on_unit : on_vectors).push_back(job);
  }
  if (!on_unit.empty()) RunOnUnit(on_unit, rows, pool);
  uint32_t panel_count = 0;
  for (const LinearJob& job : on_vectors) panel_count += job.linear->panel_count();
  RunTasks(panel_count, rows, pool, [&](uint32_t task, uint32_t) {
    const LinearJob* job = on_vectors.data();
    for (; task >= job->linear->panel_count(); ++job) task -= job->linear->panel_count();
    HWY_DYNAMIC_DISPATCH(RunPanel)(*job, task, rows);
  });
}

}  // namespace ckv
#endif  // HWY_ONCE
