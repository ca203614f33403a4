// Partial attention of query rows over cKV rows: the holder's whole work, dense and selected.

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "attention/partial.h"
#include "attention/worker_pool.h"

namespace ckv {

// One (queries, rows) pair of a call, and where its partial goes.
struct AttentionPiece {
  QueryView q;
  RowView rows;
  // Present: attend only these rows (indices into `rows`; -1 and others out of range are skipped,
  // one that comes twice counts twice, see proto/selection.h). Absent: all of them (dense).
  Selection selection;
  // u32 [q.count]: query row i sees only the rows with index < row_limits[i] (causal prefill and
  // valid lengths; it bounds selected indices too). Null: no limit.
  const uint32_t* row_limits = nullptr;
  PartialView out;
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
// Products are exact and sums f32; a row that sees nothing is the empty partial (partial.h). Rows
// that a query does not see are never read into its result, NaN included; a NaN that it does see
// makes its o and l NaN and leaves m finite, so that no merge takes it for empty. So do infinite
// values that leave no finite logit.
//
// Error against exact arithmetic on the same rows, for |logit| up to some 4: |o| errs by at most
// 5e-7 x max(1, max|o|), and bf16 output by 2^-9 of the value more. A logit errs by about 2^-22 of
// its size, which beyond that adds 2^-21 x |logit| x max|o|. Roundings that all point one way,
// which constant inputs can make, stay within 70 x 2^-24 of the sum of absolute products. exp is a
// polynomial with a relative error below 2^-22.6; it is 0 below exp(-87). Logits of any finite size
// are safe.
//
// Batch invariant: a row's result is a function of that row, the rows it attends and the kernel
// target only, bit for bit. What else shares the call, the number of threads, alignment and strides
// do not matter: the order of every sum is fixed by the index of the cKV row. So an answer can be
// compared with a run without faults (I2). A selection sums in the order of its index list.
//
// The caller has checked counts against its limits; what is wrong here is our bug (CKV_CHECK). One
// call at a time may use a pool; calls with pools of their own run side by side.
// Cost: 2 x rows x q.count x (d_qk + d_v) flop; reads each cKV row once per block of query rows.
// Source: online softmax, Milakov and Gimelshein, arXiv:1805.02867; MLA in absorbed form,
// arXiv:2405.04434.
void AttendPartials(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                    WorkerPool& pool) noexcept;

// The SIMD targets compiled in that this machine can run, best first: "AVX3", "AVX2", ...
std::vector<std::string_view> KernelTargets();
// The target in use.
std::string_view KernelTarget();
// Makes every kernel of this folder use `target`; for tests and for comparing targets. Not
// thread-safe: call before any kernel runs. Empty: back to the best.
//   NotFound            not compiled in, or this machine lacks it; lists KernelTargets().
absl::Status ForceKernelTarget(std::string_view target);

}  // namespace ckv
