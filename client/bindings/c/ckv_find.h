// Prompt lookup in C: finds the stored chunks that match a prompt. Include ckv.h.

#pragma once

#include "ckv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_find_call {
  size_t struct_size;
  const int32_t* tokens;     // [token_count], the whole prompt; none is negative
  uint32_t token_count;      // at most 2^20
  uint32_t extra_key_count;  // the length of extra_keys
  // [extra_key_count], the prompt's pictures, sounds and adapters, counted from its first token. A
  // chunk matches only if it was put with exactly the keys that the prompt has at the chunk's
  // tokens.
  const ckv_extra_key* extra_keys;
  // A corpus of the wanted model. If NULL, chunks may be of any model, but all of the same one.
  const ckv_corpus* model_of;
  uint64_t timeout_ns;
} ckv_find_call;

// The outcome of ckv_find. The library writes all of it.
typedef struct ckv_find_report {
  size_t struct_size;
  uint64_t matched_token_count;  // tokens of the prompt that are in chunks
  // 1: the search hit a limit, of candidate chunks or of their positions. A better match may exist.
  uint32_t truncated;
  uint32_t reserved;
} ckv_find_report;

// Finds the chunks that match a prompt, in all corpora that the tenant may read. Makes a corpus of
// them, in the order of the prompt. The corpus has no name and no version, and is otherwise like
// any other. A chunk that occurs several times in the prompt is listed once, at its first
// occurrence. Treat the other occurrences as tokens without a chunk. Chunks without a parent match
// anywhere; those of a chain match after their parent. The match with the most tokens is returned.
// Chunks of fewer than 16 tokens are not found. `report` may be NULL.
//
// To attend the result from the prompt's other tokens, pass the offsets from ckv_found_spans to
// ckv_part.
//   NOT_FOUND            no chunk was found, or one of them no longer has a holder: find again.
//   INVALID_ARGUMENT     also: too many tokens, a negative token id, an extra key that does not
//                        fit, or matching chunks of several models.
//   UNAVAILABLE, DEADLINE_EXCEEDED  as ckv_resolve.
ckv_status ckv_find(ckv_requester* requester, const ckv_find_call* call, ckv_corpus** corpus,
                    ckv_find_report* report);

// Returns where the chunks [chunk_begin, chunk_end) of a found corpus are in the prompt. Each array
// has one element per chunk, and may be NULL. Tokens in no chunk are the gaps between them.
//   token_begins  uint32_t [n]: the index of the prompt's token with which the chunk begins
//   offsets       int64_t [n]: token_begin less the chunk's canonical position, as in ckv_part, if
//                 the prompt's first token is at position 0
//   INVALID_ARGUMENT     also: the range is not within the corpus.
//   FAILED_PRECONDITION  the corpus is not from ckv_find.
ckv_status ckv_found_spans(const ckv_corpus* corpus, uint32_t chunk_begin, uint32_t chunk_end,
                           uint32_t* token_begins, int64_t* offsets);

#ifdef __cplusplus
}
#endif
