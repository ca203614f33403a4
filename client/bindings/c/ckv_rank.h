// Ranks the instances that could decode a request, in C. Include ckv.h.
//
// Source: arXiv:2606.03910 (NetKV), Algorithm 1. The cost of a candidate, until its first token:
//
//   missing   = cache_bytes * (1 - matched_tokens / tokens)
//   transfer  = missing / (bandwidth * (1 - congestion) / (1 + in_flight)) + latency
//   queue     = max(0, queued - (batch_max - batch)) * t(batch)
//   decode    = t(batch + 1)        t(b) = iteration_base + iteration_request * b
//
// The functions need no requester, do no I/O, and keep no state. Any threads may call them.

#pragma once

#include "ckv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_rank_request {
  size_t struct_size;
  double tokens;         // all tokens of the prompt, above 0
  double cache_bytes;    // the KV cache of all its tokens
  double reserve_bytes;  // that stay free on an instance, for activations and one more step
} ckv_rank_request;

typedef struct ckv_rank_candidate {
  size_t struct_size;
  double matched_tokens;  // tokens of the prompt whose rows are there
  double free_bytes;
  double queued;  // requests that wait
  double batch;   // requests that are decoded now
  double batch_max;
  double iteration_base_us;
  double iteration_request_us;
  // The path from where the rows are. A bandwidth of 0 is unknown: a transfer then costs its
  // latency.
  double bandwidth_bytes_per_s;
  double latency_us;
  double congestion;  // [0, 1): the share that the traffic of others takes
  double in_flight;   // the caller's own transfers on that tier; more than 16 count as 16
} ckv_rank_candidate;

typedef struct ckv_rank_cost {
  size_t struct_size;
  double missing_bytes;
  double bandwidth_bytes_per_s;  // left for this transfer
  double transfer_us;
  double queue_us;
  double decode_us;
  double total_us;
  uint32_t has_room;  // 0 if it has too few free bytes; then it is not chosen
  uint32_t reserved;
} ckv_rank_cost;

#define CKV_RANK_NONE UINT32_MAX

// Writes the cost of each candidate, and the index of the cheapest with room. Ties go to the lower
// index; if none has room, *best is CKV_RANK_NONE. `costs` has candidate_count elements, whose
// struct_size is set, or is NULL. *tolerated_error is how far all congestions may be off before
// another candidate is the cheapest. It is 0 for a tie, and infinity if no error changes the
// choice. `tolerated_error` may be NULL.
//   INVALID_ARGUMENT     also: no candidates or more than 65536; a number is negative or not
//   finite;
//                        tokens is 0; a congestion is 1 or more. Names the field.
ckv_status ckv_rank(const ckv_rank_request* request, const ckv_rank_candidate* candidates,
                    uint32_t candidate_count, ckv_rank_cost* costs, uint32_t* best,
                    double* tolerated_error);

#ifdef __cplusplus
}
#endif
