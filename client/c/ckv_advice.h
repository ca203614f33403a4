// Advice in C: which of route, fetch and local costs least for some chunks, and why. Include ckv.h.

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
  // Tokens that still fit the engine's cache. By default the chunks fit. CKV_NO_ROOM: none do.
  // ckv_quote takes no notice of it.
  uint64_t cache_room_tokens;
  uint64_t timeout_ns;  // counts for ckv_explain
} ckv_advice_call;

#define CKV_NO_ROOM UINT64_MAX

// Both functions set *json to a text that ends with 0, in UTF-8, which ckv_text_free frees. Later
// versions add members; the ones that there are keep their meaning. Times are microseconds over all
// steps, agents and layers.
//
//   DECISION   {"choice": "route", "fetch", "local" or null, "runner_up": one of them or null,
//               "costs": [{"primitive": ..., "offered": bool, "reason": why not, or "",
//                          "total_us": x, "terms_us": {"probe": x, "transfer": x, "compute": x,
//                          "queue": x, "shared": x, "merge": x, "splice": x, "evict": x,
//                          "prefill": x}}],
//               "route_bytes": to and from one holder, a layer and step,
//               "fetch_bytes": of one layer}
//
// Tells the cost of each way for each group of chunks with the same holders, by what is known now.
// Asks nobody and waits for nothing, so routers may ask often. A group has the members of DECISION
// and {"holders": [names], "first_chunk": n, "chunk_count": n, "tokens": n, "near_tokens": n}.
//   {"groups": [GROUP]}
// If a constant is not known yet, nothing is chosen. ckv_explain measures all.
//   INVALID_ARGUMENT     also: no such chunk, or one twice; query_rows beyond 65536; no such type.
ckv_status ckv_quote(ckv_requester* requester, const ckv_advice_call* call, char** json);

// Tells which way costs least for the chunks together, and why. Asks the directory and the holders,
// and measures what is not known: milliseconds, and more the first time. Acts on nothing. The text
// has the members of DECISION, and
//   {"summary": one line for people, "tokens": n, "near_tokens": n,
//    "route_ratio": what the last attends that asked a holder took over what was predicted of them,
//                   a median, or null before 16 of them; costs are without it,
//    "near_ratio": the same of attends of near rows alone,
//    "holders": [{"name": ..., "group": n, "token_share": x, "t_probe_us": x or null,
//                 "bandwidth_bytes_per_s": x or null}],
//    "inputs": [{"name": ..., "unit": ..., "value": x, "sensitivity": d ln T / d ln x,
//                "flip": null or {"value": x, "choice": ..., "sentence": ...}}],
//    "doubts": [sentences that say why the prediction may be wrong]}
//   UNAVAILABLE          no replica of a chunk answers, or its bandwidth cannot be told.
//   INVALID_ARGUMENT     as ckv_quote.
//   RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, NOT_FOUND, FAILED_PRECONDITION  as ckv_attend.
ckv_status ckv_explain(ckv_requester* requester, const ckv_advice_call* call, char** json);

// Frees a text that the library made.
void ckv_text_free(char* text);

#ifdef __cplusplus
}
#endif
