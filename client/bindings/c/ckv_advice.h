// Advice in C: which of route, fetch and local (recompute) costs least, and why. Include ckv.h.

#pragma once

#include "ckv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_advice_call {
  size_t struct_size;
  const ckv_corpus* corpus;
  const uint32_t* chunks;  // ordinals, each at most once; by default all chunks of the corpus
  uint32_t chunk_count;
  uint32_t query_rows;  // tokens x heads of one request; by default 1
  uint32_t steps;       // decode steps; by default 1
  uint32_t agents;      // agents that share the chunks here; by default 1
  uint32_t select;      // rows that a query attends; by default all
  uint32_t wire;        // the type of partials on the wire; by default CKV_DTYPE_BF16
  // Tokens that still fit the engine's cache. By default the chunks fit. CKV_CACHE_FULL: none fit.
  // Ignored by ckv_estimate.
  uint64_t cache_free_tokens;
  uint64_t timeout_ns;  // only for ckv_explain
  // If not 0, the engine would keep fetched rows at other positions than the chunks' own
  // (ckv_fetch_call.position). A fetch then rotates each row, and costs "splice".
  uint32_t spliced;
  uint32_t reserved;
} ckv_advice_call;

#define CKV_CACHE_FULL UINT64_MAX

// Both functions set *json to a zero-terminated text in UTF-8. Free it with ckv_text_free. Later
// versions add members; existing ones keep their meaning. Times are microseconds over all steps,
// agents and layers.
//
//   DECISION   {"choice": "route", "fetch", "local" or null, "runner_up": one of them or null,
//               "costs": [{"primitive": ..., "offered": bool, "reason": why not, or "",
//                          "total_us": x, "terms_us": {"probe": x, "transfer": x, "compute": x,
//                          "queue": x, "shared": x, "merge": x, "splice": x, "evict": x,
//                          "prefill": x}}],
//               "route_bytes": to and from one holder, per layer and step,
//               "fetch_bytes": for one layer}
//
// Returns the cost of each way for each group of chunks with the same holders, from known
// constants. Sends nothing and does not wait, so routers may call it often. A group has the members
// of DECISION and {"holders": [names], "first_chunk": n, "chunk_count": n, "tokens": n,
// "cached_tokens": n}.
//   {"groups": [GROUP]}
// If a constant is not known yet, nothing is chosen. ckv_explain measures all constants.
//   INVALID_ARGUMENT     also: a chunk that does not exist or is listed twice; query_rows beyond
//                        65536; an unknown type.
ckv_status ckv_estimate(ckv_requester* requester, const ckv_advice_call* call, char** json);

// Returns which way costs least for the chunks together, and why. Queries the directory and the
// holders, and measures unknown constants. Takes milliseconds, and longer the first time. Only
// reports. The text has the members of DECISION, and
//   {"summary": one line for people, "tokens": n, "cached_tokens": n,
//    "route_ratio": measured over predicted time of recent attends that used a holder: a median, or
//                   null before 16 of them; not applied to the costs,
//    "cached_ratio": the same for attends of cached rows only,
//    "holders": [{"name": ..., "group": n, "token_share": x, "t_probe_us": x or null,
//                 "bandwidth_bytes_per_s": x or null}],
//    "inputs": [{"name": ..., "unit": ..., "value": x,
//                "flip": null or {"value": x, "choice": ..., "sentence": ...}}],
//    "doubts": [sentences that explain why the prediction may be wrong]}
//   UNAVAILABLE          no replica of a chunk answers, or its bandwidth cannot be measured.
//   INVALID_ARGUMENT     as ckv_estimate.
//   RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, NOT_FOUND, FAILED_PRECONDITION  as ckv_attend.
ckv_status ckv_explain(ckv_requester* requester, const ckv_advice_call* call, char** json);

// Takes the time in which the engine prefilled `token_count` tokens of a prompt, over all layers.
// The median of the last 31 reports of at least 64 tokens is the cost of "local" in advice, and in
// contexts of policy auto. It applies from the third report on, to this model and revision. Do not
// report a prefill that attended routed rows. Sends nothing and does not wait.
//   model                its fields from model to softmax_scale, as in ckv_put_target.create
//   INVALID_ARGUMENT     also: there are no tokens, or took_ns is 0 or above an hour.
ckv_status ckv_report_prefill(ckv_requester* requester, const ckv_corpus_facts* model,
                              uint64_t token_count, uint64_t took_ns);

// Frees a text that the library returned.
void ckv_text_free(char* text);

#ifdef __cplusplus
}
#endif
