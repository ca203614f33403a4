// Partial attention of query rows over cKV rows, dense or selected. A holder computes nothing else.

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "attention/partial.h"
#include "attention/precision.h"
#include "attention/worker_pool.h"

namespace ckv {

// One (queries, rows) pair of a call, and where its partial is written.
struct AttentionPiece {
  QueryView q;
  RowView rows;
  // If present, only these rows are attended. Indices point into `rows`. -1 and other indices out
  // of range are skipped, and a duplicate counts twice (proto/selection.h). If absent, all rows are
  // attended (dense).
  Selection selection;
  // u32 [q.count]: query row i attends only rows with index < row_limits[i], for causal prefill and
  // valid lengths. The limit also applies to selected indices. If null, there is no limit.
  const uint32_t* row_limits = nullptr;
  PartialView out;
  Precision precision = Precision::kDefault;  // vector targets always compute kExact (precision.h)
};

// Computes the partial of every piece. One query token of 16 heads over a chunk:
//
//   AttentionPiece piece;
//   piece.q = {q, 16, shape.d_qk};
//   piece.rows = {chunk, 2048, shape.d_qk * 2};
//   piece.out = {o, m, l, PartialDtype::kF32};
//   AttendPartials(shape, {&piece, 1}, pool);
//
//   pieces[p].q       bf16 [q.count, d_qk]
//   pieces[p].rows    [rows.count] rows of shape.row_dtype; values are the first d_v columns
//   pieces[p].out     o [q.count, d_v], m, l [q.count]; written whole, aliases nothing
//
//   logit_ij = softmax_scale * (q_i . row_j)     m_i = max_j logit_ij
//   l_i = sum_j exp(logit_ij - m_i)              o_i = sum_j exp(logit_ij - m_i) v_j / l_i
//
// In Precision::kExact, products are exact and sums are f32; other precisions round the weights
// first (precision.h). A query row that attends no row gets the empty partial (partial.h). Rows
// that a query row does not attend never affect its result, even if they are NaN. A NaN that it
// attends makes its o and l NaN and leaves m finite, so that no merge mistakes it for empty.
// Infinite values that leave no finite logit have the same effect.
//
// Error in Precision::kExact against exact arithmetic on the same rows, for |logit| up to about 4:
// |o| errs by at most 5e-7 x max(1, max|o|). bf16 output adds up to 2^-8 of the value. A logit errs
// by about 2^-22 of its size; beyond 4 that adds 2^-21 x |logit| x max|o|. Constant inputs can make
// all rounding errors have the same sign. The error then stays within 70 x 2^-24 of the sum of
// absolute products. exp is a polynomial with a relative error below 2^-22.6; it is 0 below
// exp(-87). Logits of any finite size are safe.
//
// Batch invariant: a query row's result depends only on that row, the rows it attends, the
// precision and the kernel target, bit for bit. Other rows in the call, the number of threads,
// alignment and strides do not matter. The index of the cKV row fixes the order of every sum. So an
// answer can be compared with a run without faults (I2). A selection sums in the order of its index
// list.
//
// The caller has checked counts against its limits; a wrong count here is our bug (CKV_CHECK). A
// pool serves one call at a time. Calls with different pools run concurrently.
// Cost: 2 x rows x q.count x (d_qk + d_v) flop; reads each cKV row once per block of query rows.
// Source: online softmax, Milakov and Gimelshein, arXiv:1805.02867; MLA in absorbed form,
// arXiv:2405.04434.
void AttendPartials(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                    WorkerPool& pool) noexcept;

// Returns true if both pieces attend the same rows at one precision, and neither has a selection.
// If they are neighbours, AttendPartials reads these rows once for the query rows of both.
bool ShareRows(const AttentionPiece& a, const AttentionPiece& b);
// Sorts the pieces so that those that share rows become neighbours. The order among the others is
// unspecified. It affects the time of AttendPartials, but no bit of its results.
void GatherSharedRows(std::span<AttentionPiece> pieces);

// Returns the compiled targets that this machine can run, for example "AMX", "AVX3" and "AVX2", the
// best first. A unit that multiplies bf16 precedes the vector targets only if a loop of its
// products was measured to be faster. The first call of KernelTargets, KernelTarget or a kernel
// measures, which takes 2 ms, or 7 ms with AMX. attention/target/kernel_choice.h has the reason,
// and how to make the same choice at the next start. The last target is "AMX_MODEL", which computes
// the bits of "AMX" in software, for tests.
std::vector<std::string_view> KernelTargets();
// Returns the target in use.
std::string_view KernelTarget();
// Makes every kernel of this folder use `target`. To get equal bits, pass a target that all
// machines of a fleet have; for tests and comparisons, pass any. If `target` is empty, restores the
// best. Not thread-safe: call before any kernel runs.
//   NotFound            `target` is not compiled in, or this machine lacks it; the message lists
//                       KernelTargets(), but not in order of speed.
absl::Status ForceKernelTarget(std::string_view target);

}  // namespace ckv
