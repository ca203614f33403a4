// Reports this engine's load to the directory, and ranks the engines that do, in C. Include ckv.h.
//
// ckv_rank.h has the formula of a cost. A directory keeps loads in memory, under leases. An engine
// is in rankings from its first report until its requester is closed, or its process has ended for
// one lease.

#pragma once

#include "ckv.h"

#ifdef __cplusplus
extern "C" {
#endif

// An iteration of the engine takes iteration_base_us + iteration_request_us * batch. Two zeros mean
// that this is not known yet. The directory then ranks the engine by the mean of the other engines.
typedef struct ckv_load {
  size_t struct_size;
  const char* address;  // host:port at which routers reach the engine; the same in every report
  // The engine's host, as the directory's network oracle names it. By default that of `address`.
  const char* host;
  double free_bytes;  // memory that is free for a KV cache
  double queued;      // requests that wait
  double batch;       // requests that are decoded now
  double batch_max;
  double iteration_base_us;
  double iteration_request_us;
  // The chunks that the engine has, 32 bytes each, the most important first. The first 4096 count.
  // NULL keeps the earlier list. Until there is one, it is the requester's local row cache.
  const uint8_t* chunk_ids;
  uint32_t chunk_count;
  uint32_t reserved;
} ckv_load;

// Sets the load under the requester's name. Does not wait: a thread of the library sends a change
// within 100 ms. While the engine is idle, it renews the lease with the last load. Call it after
// each step. The library keeps no pointer.
//   INVALID_ARGUMENT     also: a malformed address, or another one or another host than before; a
//                        number that is negative, not finite or above 1e15.
ckv_status ckv_report_load(ckv_requester* requester, const ckv_load* load);

typedef struct ckv_rank_query {
  size_t struct_size;
  const char* corpus;        // that the prompt reads; or chunk_ids; or none: then nothing is cached
  double tokens;             // tokens of the prompt. By default those of the corpus or the chunks
  double cache_bytes;        // its KV cache. By default computed from the corpus
  double reserve_bytes;      // that stay free on an engine
  const uint8_t* chunk_ids;  // the prompt's chunks in order, 32 bytes each; at most 4096
  const uint32_t* chunk_tokens;  // the tokens of each
  uint32_t chunk_count;
  // 1 counts only chunks before the first that an engine lacks, for engines that reuse prefixes.
  uint32_t prefix_only;
  // The hosts that have the prompt's rows, separated by commas, at most 4. By default those of the
  // first chunk's holders.
  const char* from_hosts;
  const double* in_flight;  // the caller's own transfers by tier, the nearest first
  uint32_t tier_count;      // numbers in in_flight; at most 16
  uint32_t with_tolerance;  // 1 also computes tolerated_error, which takes longer
  uint64_t timeout_ns;
} ckv_rank_query;

// Queries the directory for a ranking. On success, free *json by ckv_text_free.
// client/rank/ranking_json.h has its members: "requesters" with every term, ordered by name, and
// "best", the index of the cheapest with room, or null.
//   INVALID_ARGUMENT     also: tokens or cache_bytes are unknown; a number is negative or not
//                        finite; a corpus and chunks are both given.
//   NOT_FOUND            there is no such corpus.
//   UNAVAILABLE, DEADLINE_EXCEEDED  the directory does not answer, or none leads.
ckv_status ckv_rank_requesters(ckv_requester* requester, const ckv_rank_query* query, char** json);

#ifdef __cplusplus
}
#endif
