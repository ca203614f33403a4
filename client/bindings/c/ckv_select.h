// Sparse attention in C: the rows of a context with the best index scores. Include ckv.h.
//
//   ckv_select_call select = {.struct_size = sizeof select, .context = context};
//   select.layer = layer, select.token_count = 1, select.q = q, select.weights = weights;
//   select.q_dtype = CKV_INDEX_FP8, select.k = 2048;
//   ckv_choice* choice;
//   ckv_choose_rows(requester, &select, NULL, &choice);
//   ckv_segment segment = {.struct_size = sizeof segment, .context = context};
//   segment.choice = choice, segment.choice_group_rows = heads;
//   ...                        // ckv_attend with the segment, at this layer and the next ones
//   ckv_choice_free(choice);

#pragma once

#include "ckv.h"

#ifdef __cplusplus
extern "C" {
#endif

// Index queries of consecutive tokens at one layer. Their model has index keys (ckv_corpus_facts).
typedef struct ckv_select_call {
  size_t struct_size;
  const ckv_context* context;
  uint32_t layer;
  uint32_t token_count;  // 1 to 1024
  // [token_count][index_heads][index_dim], rotated to the tokens' positions. bf16, or e4m3 without
  // scales: multiply the weights by them.
  const void* q;
  const float* weights;  // [token_count][index_heads]
  uint32_t q_dtype;      // CKV_INDEX_BF16 or CKV_INDEX_FP8
  uint32_t k;            // rows of each token, 1 to 16384
  // float [token_count][own_count]: the scores of the caller's own rows, -inf for rows that a token
  // does not see. They compete with the context's rows. NULL if there are none.
  const float* own_scores;
  uint32_t own_count;
  uint32_t reserved;
  uint64_t timeout_ns;
  const char* traceparent;  // as in ckv_attend_call
} ckv_select_call;

// The work of a selection. The library writes all of it, but only on success.
typedef struct ckv_select_report {
  size_t struct_size;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t compute_ns_max;  // the longest time that a holder scored for one request
  uint64_t elapsed_ns;      // the last attempt alone
  uint32_t holder_count;
  uint32_t reserved;
} ckv_select_report;

// Selects the k rows with the best scores for each token. Holders score the keys where they are;
// chunks that are cached locally are scored here. Writes `rows`, int32_t [token_count][k]:
// ascending, counted as selections count them. -1 follows if there are fewer. Own row i counts as
// ckv_context_token_count + i. Among equal scores, the lower row is selected. `report` may be NULL.
//   INVALID_ARGUMENT     also: counts beyond their limits, or more than 2^31 - 1 rows in all.
//   FAILED_PRECONDITION  the context's model has no index keys.
//   NOT_FOUND, UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED  as ckv_attend.
ckv_status ckv_select_rows(ckv_requester* requester, const ckv_select_call* call, int32_t* rows,
                           ckv_select_report* report);

// Selects as ckv_select_rows, for calls with ckv_segment's `choice`. Holders remember the rows, so
// no call lists them. This saves a round trip, and 8 bytes for each row. If a holder has forgotten
// the rows, the next attend finds them again. The choice is of the same requester and context, and
// serves any number of calls and threads at once, at any layer.
ckv_status ckv_choose_rows(ckv_requester* requester, const ckv_select_call* call,
                           ckv_select_report* report, ckv_choice** choice);
// Returns how many of the caller's own rows were chosen for a token, and sets *rows to them:
// ascending, counted from its first own row. They are valid until the choice is freed. Returns 0
// for NULL, or a token that the choice does not have.
uint32_t ckv_choice_own_rows(const ckv_choice* choice, uint32_t token, const uint32_t** rows);
// Frees the choice. Tickets in flight continue.
void ckv_choice_free(ckv_choice* choice);

#ifdef __cplusplus
}
#endif
