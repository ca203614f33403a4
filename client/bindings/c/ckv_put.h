// Publishing in C: stores rows that an engine has computed on holders, and adds them to a corpus.
// Include ckv.h.
//
//   ckv_put_target target = {.struct_size = sizeof target, .corpus = "docs", .parent = last_id};
//   ckv_put* put;
//   if (ckv_put_begin(requester, &target, &put) != CKV_OK) die(ckv_last_error(requester));
//   ckv_put_chunk chunk = {.struct_size = sizeof chunk, .token_ids = ids, .token_count = n};
//   ckv_put_add_chunk(put, &chunk);
//   for (uint32_t layer = 0; layer < layers; ++layer)
//     ckv_put_add_rows(put, layer, 0, rows[layer], n * row_bytes);
//   ckv_put_report report = {.struct_size = sizeof report};
//   if (ckv_put_finish(put, CKV_TIMEOUT_DEFAULT, &report) != CKV_OK)
//     die(ckv_last_error(requester));
//
//   ckv_put_free(put);

#pragma once

#include "ckv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_put_target {
  size_t struct_size;
  const char* corpus;  // its name; required. It is the requester's tenant's, or shared
  // uint8_t [32]: the chunk of the corpus that the first chunk of a chain follows. If NULL, that
  // first chunk has no parent, and begins at its own position.
  const uint8_t* parent;
  // If not NULL, a missing corpus is created. Its model is taken from the fields `model` to
  // `softmax_scale`, as ckv_corpus_describe writes them: none has a default. Name, version, counts
  // and row_bytes are ignored. An existing corpus must have this model.
  const ckv_corpus_facts* create;
  uint64_t bytes_max;  // limit for rows that wait in the put; by default 1 GiB
  uint32_t replicas;   // copies of each chunk; by default those of the corpus' last chunk, or 1
  uint32_t reserved;
  uint64_t timeout_ns;  // limit for ckv_put_begin
  // Limits of the corpus, set by ckv_put_finish. If 0, it keeps its present limit, and a new corpus
  // has none. `ckvctl corpus set` removes a limit.
  uint64_t ttl_ms;              // from the last change of its chunks to its end; at most 100 years
  uint64_t quota_bytes;         // limit for the rows, one copy of each chunk
  uint32_t kept_version_count;  // versions that stay when others replace them; at most 16
  uint32_t reserved2;
} ckv_put_target;

// One chunk, without its rows.
typedef struct ckv_put_chunk {
  size_t struct_size;
  const int32_t* token_ids;  // [token_count], none negative; copied
  uint32_t token_count;      // 1 to 2^20
  // Not 0: its rows were computed alone at position 0, and prompts match it anywhere. If 0, it
  // follows the previous chunk of this put that is not standalone, or the target's parent.
  uint32_t standalone;
  // The position of the first token, if the chunk has no parent. A parent determines the position
  // of any other chunk; a value that is not 0 is checked against it.
  uint64_t position;
  // [extra_key_count], counted from this chunk's first token. A picture that began in the previous
  // chunk is also a key of this one, with a negative begin.
  const ckv_extra_key* extra_keys;
  uint32_t extra_key_count;
  uint32_t reserved;
} ckv_put_chunk;

// The outcome of a put. The library writes all of it.
typedef struct ckv_put_report {
  size_t struct_size;
  uint64_t version;      // the version of the corpus that contains the chunks
  uint64_t bytes_sent;   // rows sent to holders, including copies
  uint32_t chunk_begin;  // ordinal in the corpus of the first new chunk
  uint32_t added_count;  // chunks that the corpus did not have before
  // 1 if the chunks stay in the corpus even if the directory crashes. 0 if the directory has no
  // directory.path and a holder has not confirmed them. Then put them again after a crash.
  uint32_t kept;
  uint32_t reserved;
} ckv_put_report;

// Chunks being added to a corpus. Only one thread at a time may use a put. Free it before its
// requester is closed.
typedef struct ckv_put ckv_put;

// Begins a put. Reads the corpus' current state from the directory. Sends nothing to holders yet.
//   NOT_FOUND            the tenant itself has no such corpus, and `create` is NULL.
//   FAILED_PRECONDITION  the corpus has another model than `create`, or does not have the chunk
//                        `parent`.
//   INVALID_ARGUMENT     also: ttl_ms or kept_version_count is too large.
//   UNAVAILABLE, DEADLINE_EXCEEDED  as ckv_resolve.
ckv_status ckv_put_begin(ckv_requester* requester, const ckv_put_target* target, ckv_put** put);

// Returns the bytes of one row of the corpus at one layer. 0 for NULL.
uint32_t ckv_put_row_bytes(const ckv_put* put);
// Returns the bytes of one index key of the corpus at one layer. 0 if it has no index, and for
// NULL.
uint32_t ckv_put_index_key_bytes(const ckv_put* put);

// Begins the next chunk. All rows of the previous chunk must have been added. Allocates the memory
// for all rows of the new one: token_count x layers x row_bytes. After an error, another chunk may
// be begun; the previous chunk may have been completed by the failed call.
//   FAILED_PRECONDITION  rows of the previous chunk are missing.
//   INVALID_ARGUMENT     also: the position is not the end of the previous chunk, or a token id is
//                        negative. Or an extra key affects no token of the chunk, occurs twice, or
//                        is too long.
//   RESOURCE_EXHAUSTED   the rows do not fit bytes_max.
ckv_status ckv_put_add_chunk(ckv_put* put, const ckv_put_chunk* chunk);

// Adds rows of the last chunk at one layer: canonical rows of the model, rotated to the chunk's own
// positions. Layers may be in any order; rows of one layer must be in sequence. `offset_bytes` is
// the number of the layer's bytes added before. Copies the rows.
//   INVALID_ARGUMENT     also: there is no layer of this number, or the rows are out of sequence or
//                        do not fit.
//   FAILED_PRECONDITION  there is no chunk yet.
ckv_status ckv_put_add_rows(ckv_put* put, uint32_t layer, uint64_t offset_bytes, const void* rows,
                            uint64_t bytes);

// The same for the index keys of the last chunk at one layer, index_key_bytes each. They are as the
// model stores them, rotated to the chunk's own positions. A corpus with an index needs them before
// the next chunk and before ckv_put_finish.
//   INVALID_ARGUMENT     also: the corpus has no index.
ckv_status ckv_put_add_index_keys(ckv_put* put, uint32_t layer, uint64_t offset_bytes,
                                  const void* keys, uint64_t bytes);

// Puts all chunks on holders and appends them to the corpus in one change: readers see all of them
// or none. Chunks that the corpus already has are skipped, so a put whose answer was lost may be
// repeated. Their rows are not compared. The corpus' other chunks are neither read nor sent. After
// an error it may be called again; after success the put is done. `report` may be NULL. If the
// directory has no directory.path, it waits for at most 5 s of the timeout until the holders have
// recorded the change.
//   FAILED_PRECONDITION  rows are missing: add them and call again. Or another chunk was added
//                        after `parent` meanwhile: begin a new put after the last chunk.
//                        Or there are no holders: call again later. Or the put is done.
//   INVALID_ARGUMENT     also: there are no chunks, or more copies than holders.
//   DATA_LOSS            a holder already has different rows under the id of a new chunk: the same
//                        tokens were prefilled in another way. Give the geometry another revision,
//                        or drop the corpora that have the chunk.
//   ABORTED              others changed the corpus repeatedly: call it again.
//   RESOURCE_EXHAUSTED   a holder is full, or the corpus has a quota that the chunks exceed.
//   UNAVAILABLE, DEADLINE_EXCEEDED  the directory or a holder does not answer, or not in time.
ckv_status ckv_put_finish(ckv_put* put, uint64_t timeout_ns, ckv_put_report* report);

// Returns the number of completed chunks. A chunk is completed by the next one or by
// ckv_put_finish. Writes the ids of the first `capacity` of them to uint8_t ids [capacity][32]. 0
// for NULL.
uint32_t ckv_put_ids(const ckv_put* put, uint8_t* ids, uint32_t capacity);

// Frees a put, and drops everything that was not finished.
void ckv_put_free(ckv_put* put);

#ifdef __cplusplus
}
#endif
