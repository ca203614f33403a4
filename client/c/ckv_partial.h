// Partials in C: merging them, and the log-sum-exps of other engines. Include ckv.h.
//
// A partial is the answer of attention over some rows, for each query row:
//   o   [rows][d_v]  sum_j p_j v_j / l     f32, or bf16 where it says so
//   m   f32 [rows]   max_j logit_j         with the softmax scale, natural log
//   l   f32 [rows]   sum_j exp(logit_j - m)
// A row that saw nothing has o = 0, m = -inf, l = 0. Merging partials over disjoint rows gives the
// answer over all of them. An engine that attends its own rows elsewhere (on a GPU, say) merges
// ckv's answer with its own so, before W_UV.
//
// All memory of these functions is the host's (CKV_MEMORY_HOST or CKV_MEMORY_PINNED), whatever the
// backend of a requester is. An engine merges answers in memory of a device by a kernel of its own,
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
  uint32_t dtype;  // o's: CKV_DTYPE_F32, the default, or CKV_DTYPE_BF16
  uint32_t reserved;
} ckv_partial;

// Merges partials of the same query rows over disjoint rows, in the order given.
//   m = max_s m_s     w_s = l_s exp(m_s - m)     l = sum_s w_s     o = sum_s (w_s / l) o_s
// The answer goes to f32 o [row_count][d_v], m and l [row_count], which overlap no part. A part
// with l = 0 or an m that is not finite is empty in that row: it is left out, whatever its o holds.
// If one part is not empty, the answer has its bits. Sums are f32, in the order of the parts, so
// equal orders give equal bits. Computes on the calling thread. Needs no requester.
//   INVALID_ARGUMENT     also: no parts or more than 2^20, d_v is not 1 to 1024, or the answer
//                        overlaps a part.
ckv_status ckv_merge(const ckv_partial* parts, uint32_t part_count, uint32_t row_count,
                     uint32_t d_v, float* o, float* m, float* l);

// How engines write a log-sum-exp, and mark a row that saw nothing. Reading takes the marks of all
// forms: -inf and +inf always mean an empty row.
//                        log      empty row is written as   is also read as empty
//   CKV_LSE_NATURAL      natural  -inf
//   CKV_LSE_BASE2        base 2   -inf
//   CKV_LSE_FLASHMLA     natural  +inf
//   CKV_LSE_FLASHINFER   base 2   -50000                    everything up to -49000
// FLASHMLA is what decoding returns (flash_mla_with_kvcache). Its sparse prefill
// (flash_mla_sparse_fwd) returns base 2: read that as BASE2. FLASHINFER's kernels begin with a
// finite maximum, math::inf = 5e4 with a minus, and an empty row keeps it. To that comes the log of
// what they counted, at most 20 for a million masked keys. Newer kernels return -inf instead.
// -50000 is written because merging two rows of -inf is NaN there; every kernel takes the finite
// one. A real row would need logits below -33964 to be taken for an empty one.
enum {
  CKV_LSE_NATURAL = 0,
  CKV_LSE_BASE2 = 1,
  CKV_LSE_FLASHMLA = 2,
  CKV_LSE_FLASHINFER = 3,
};

// Writes lse [row_count] of partials: m + ln l, in the form's base. A row with l = 0 or an infinite
// m gets the form's mark. `lse` may be m or l. Computed in double, rounded once.
//   INVALID_ARGUMENT     also: no such form; m or l is NaN, or l negative, in some row. Nothing was
//                        written.
ckv_status ckv_lse_from_partial(uint32_t form, uint32_t row_count, const float* m, const float* l,
                                float* lse);

// Writes m and l [row_count] of an engine whose o is divided by its softmax sum. m is the lse as a
// natural log and l is 1. In an empty row, m is -inf and l is 0. With the engine's o that is a
// partial for ckv_merge. `m` may be lse.
//   INVALID_ARGUMENT     also: no such form; lse is NaN in some row. Nothing was written.
ckv_status ckv_partial_from_lse(uint32_t form, uint32_t row_count, const float* lse, float* m,
                                float* l);

#ifdef __cplusplus
}
#endif
