// Publishing in C: rows that an engine has computed, put on holders and into a corpus. Include
// ckv.h.
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
  const char* corpus;  // its name; needed. It is the tenant's own: of ckv_open_options, or shared
  // uint8_t [32]: the chunk of the corpus that the first chunk of a chain follows. If NULL, that
  // one has no parent, and begins at its own position.
  const uint8_t* parent;
  // If not NULL and there is no such corpus, one is made. Its model is what `create` says from
  // `model` to `softmax_scale`, as ckv_corpus_describe writes it: no field has a default. Name,
  // version, counts and row_bytes are not looked at. A corpus that is there must have this model.
  const ckv_corpus_facts* create;
  uint64_t bytes_max;  // rows that may wait in the put; by default 1 GiB
  uint32_t replicas;   // copies of each chunk; by default as many as the corpus' last one has, or 1
  uint32_t reserved;
  uint64_t timeout_ns;  // how long ckv_put_begin may take
} ckv_put_target;

// One chunk, before its rows are there.
typedef struct ckv_put_chunk {
  size_t struct_size;
  const int32_t* token_ids;  // [token_count], none negative; copied
  uint32_t token_count;      // 1 to 2^20
  // Not 0: its rows were computed alone at position 0, and prompts find it anywhere. Otherwise it
  // follows the one before it in this put that is not standalone, or the target's parent.
  uint32_t standalone;
  // The position of the first token, if the chunk has no parent. That of any other follows from its
  // parent, and is checked if it is not 0.
  uint64_t position;
  // [extra_key_count], counted from this chunk's first token. A picture that began in the previous
  // chunk is a key of this one too, with a negative begin.
  const ckv_extra_key* extra_keys;
  uint32_t extra_key_count;
  uint32_t reserved;
} ckv_put_chunk;

// The outcome of a put. The library writes all of it.
typedef struct ckv_put_report {
  size_t struct_size;
  uint64_t version;      // the version of the corpus that has the chunks
  uint64_t bytes_sent;   // rows that went to holders, copies counted
  uint32_t chunk_begin;  // ordinal in the corpus of the first chunk that is new
  uint32_t added_count;  // chunks that the corpus did not have
  // Since 1.2: 1 if the chunks stay in the corpus even if the directory crashes. 0 if the directory
  // has no directory.path and a holder has not confirmed them: after a crash, put them again.
  uint32_t kept;
  uint32_t reserved;
} ckv_put_report;

// Chunks on their way into a corpus. Use it by one thread at a time. Free it before its requester
// is closed.
typedef struct ckv_put ckv_put;

// Begins a put. Reads from the directory what the corpus is now. Nothing is sent to holders yet.
//   NOT_FOUND            the tenant has no such corpus itself, and `create` is NULL.
//   FAILED_PRECONDITION  the corpus has another model than `create`, or no chunk `parent`.
//   UNAVAILABLE, DEADLINE_EXCEEDED  as ckv_resolve.
ckv_status ckv_put_begin(ckv_requester* requester, const ckv_put_target* target, ckv_put** put);

// Returns the bytes of one row of the corpus at one layer. 0 for NULL.
uint32_t ckv_put_row_bytes(const ckv_put* put);

// Begins the next chunk. All rows of the one before it must be there. Takes the memory of all its
// rows at once: token_count x layers x row_bytes. After an error another chunk may
// be begun; the one before it may be ended by then.
//   FAILED_PRECONDITION  rows of the chunk before it are missing.
//   INVALID_ARGUMENT     also: the position does not follow, or a token id is negative. Or an extra
//                        key affects no token of the chunk, occurs twice, or is too long.
//   RESOURCE_EXHAUSTED   the rows do not fit bytes_max.
ckv_status ckv_put_add_chunk(ckv_put* put, const ckv_put_chunk* chunk);

// Takes rows of the last chunk at one layer: canonical rows of the model, rotated to the chunk's
// own positions. Layers come in any order, those of one layer one after another: `offset_bytes` is
// the number of the layer's bytes that came before. Copies them.
//   INVALID_ARGUMENT     also: there is no such layer, or the rows do not follow or do not fit.
//   FAILED_PRECONDITION  there is no chunk yet.
ckv_status ckv_put_add_rows(ckv_put* put, uint32_t layer, uint64_t offset_bytes, const void* rows,
                            uint64_t bytes);

// Puts all chunks on holders and appends them to the corpus, by one change: everybody sees all of
// them or none. Chunks that the corpus has are left out, so a put whose answer was lost may be made
// again. Rows under an id that is there are not compared. Other chunks are neither read nor sent.
// After an error it may be called again; after success the put is done. `report` may be NULL. If
// the directory has no directory.path, it waits for at most 5 s of the timeout until the holders
// have recorded the change.
//   FAILED_PRECONDITION  rows are missing. Or the corpus has got another chunk behind `parent`. Or
//                        there are no holders, or the put is done.
//   INVALID_ARGUMENT     also: there are no chunks, or more copies than holders.
//   DATA_LOSS            a holder has other rows under an id.
//   ABORTED              others changed the corpus again and again: call it again.
//   RESOURCE_EXHAUSTED   a holder is full.
//   UNAVAILABLE, DEADLINE_EXCEEDED  the directory or a holder does not answer, or not in time.
ckv_status ckv_put_finish(ckv_put* put, uint64_t timeout_ns, ckv_put_report* report);

// Returns how many chunks were ended, by the next one or by ckv_put_finish. Writes the ids of the
// first `capacity` of them to uint8_t ids [capacity][32]. 0 for NULL.
uint32_t ckv_put_ids(const ckv_put* put, uint8_t* ids, uint32_t capacity);

// Frees a put, and drops what was not finished.
void ckv_put_free(ckv_put* put);

#ifdef __cplusplus
}
#endif
