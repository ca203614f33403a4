// Partials in C: merging them, and converting the log-sum-exps of other engines. Include ckv.h.
//
// A partial is the result of attention over some rows, for each query row:
//   o   [rows][d_v]  sum_j p_j v_j / l     f32, or bf16 where stated
//   m   f32 [rows]   max_j logit_j         with the softmax scale, natural log
//   l   f32 [rows]   sum_j exp(logit_j - m)
// A row that attended nothing has o = 0, m = -inf, l = 0. Merging partials over disjoint rows gives
// the answer over all of them. An engine that attends its own rows elsewhere (on a GPU, say) merges
// ckv's answer with its own in this way, before W_UV.
//
// All memory passed to these functions is host memory (CKV_MEMORY_HOST or CKV_MEMORY_PINNED), for
// any backend of the requester. For answers in device memory, an engine merges with its own kernel,
// or passes its rows as own rows of the call.

#pragma once

#include "ckv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_partial {
  size_t struct_size;
  const void* o;
  const float* m;
  const float* l;
  uint32_t dtype;  // o's type: CKV_DTYPE_F32, the default, or CKV_DTYPE_BF16
  uint32_t reserved;
} ckv_partial;

// Merges partials of the same query rows over disjoint rows, in the order given.
//   m = max_s m_s     w_s = l_s exp(m_s - m)     l = sum_s w_s     o = sum_s (w_s / l) o_s
// The result is written to f32 o [row_count][d_v], m and l [row_count], which must not overlap a
// part. A part with l = 0 or an m that is not finite is empty in that row: it is skipped, whatever
// its o contains. If only one part is not empty, the result has its bits. Sums are f32, in the
// order of the parts, so equal orders give equal bits. Computes on the calling thread. Needs no
// requester.
//   INVALID_ARGUMENT     also: no parts or more than 2^20, d_v is not 1 to 1024, or the result
//                        overlaps a part.
ckv_status ckv_merge(const ckv_partial* parts, uint32_t part_count, uint32_t row_count,
                     uint32_t d_v, float* o, float* m, float* l);

// How engines write a log-sum-exp, and mark a row that attended nothing. When reading, -inf and
// +inf mean an empty row in every form.
//                        log      empty row is written as   is also read as empty
//   CKV_LSE_NATURAL      natural  -inf
//   CKV_LSE_BASE2        base 2   -inf
//   CKV_LSE_FLASHMLA     natural  +inf
//   CKV_LSE_FLASHINFER   base 2   -50000                    everything up to -49000
// FLASHMLA is the form of decoding (flash_mla_with_kvcache). Its sparse prefill
// (flash_mla_sparse_fwd) returns base 2: read that as BASE2. FLASHINFER's kernels start with a
// finite maximum, -math::inf = -5e4, and an empty row keeps it. The log of the count of masked keys
// is added, at most 20 for a million keys. Newer kernels return -inf instead. ckv writes -50000,
// because merging two rows of -inf gives NaN there, and every kernel accepts the finite value. A
// real row would need logits below -33964 to be read as empty.
enum {
  CKV_LSE_NATURAL = 0,
  CKV_LSE_BASE2 = 1,
  CKV_LSE_FLASHMLA = 2,
  CKV_LSE_FLASHINFER = 3,
};

// Writes lse [row_count] of partials: m + ln l, in the form's base. A row with l = 0 or an infinite
// m gets the form's mark for an empty row. `lse` may be m or l. Computed in double, rounded once.
//   INVALID_ARGUMENT     also: an unknown form; m or l is NaN, or l negative, in some row. Nothing
//                        was written.
ckv_status ckv_lse_from_partial(uint32_t form, uint32_t row_count, const float* m, const float* l,
                                float* lse);

// Writes m and l [row_count] for an engine whose o is divided by its softmax sum. m is the lse as a
// natural log, and l is 1. In an empty row, m is -inf and l is 0. Together with the engine's o they
// are a partial for ckv_merge. `m` may be lse.
//   INVALID_ARGUMENT     also: an unknown form; lse is NaN in some row. Nothing was written.
ckv_status ckv_partial_from_lse(uint32_t form, uint32_t row_count, const float* lse, float* m,
                                float* l);

#ifdef __cplusplus
}
#endif
