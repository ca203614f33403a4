// Attention in C: contexts, calls, and tickets of calls in flight. Include ckv.h.

#pragma once

#include "ckv.h"
#include "ckv_device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Chunks of one corpus, and their positions.
typedef struct ckv_part {
  size_t struct_size;
  const ckv_corpus* corpus;
  // Ordinals in the corpus, each at most once, at least one. If NULL, all chunks of the corpus.
  const uint32_t* chunks;
  // The distance of each chunk from its canonical position, in tokens, from -2^40 to 2^40. If NULL,
  // 0. Requires `chunks`.
  const int64_t* offsets;
  uint32_t chunk_count;  // the length of both arrays
  uint32_t reserved;
  int64_t offset;  // added to the offset of each chunk
} ckv_part;

// How the rows of a context are attended. The choice does not change what an answer means.
enum {
  // ckv decides for each chunk range, and prefetches in the background what saves time.
  CKV_POLICY_AUTO = 0,
  CKV_POLICY_ROUTE = 1,  // every query is routed to the holders
  CKV_POLICY_CACHE = 2,  // all rows are prefetched while the context is opened, and attended here
};

typedef struct ckv_context_spec {
  size_t struct_size;
  // Corpora of one geometry, at most 16. Each has its own merge tree; answers merge them in this
  // order.
  const ckv_part* parts;
  uint32_t part_count;
  uint32_t policy;
  // The caller's expectations, or 0 if unknown. They change no answer.
  uint32_t expect_steps;   // decode steps that will attend the context
  uint32_t expect_agents;  // sequences of this requester that will attend the same chunks
  uint64_t timeout_ns;
} ckv_context_spec;

// Opens a context: what a sequence attends, resolved once for all its calls. Opens the sessions
// that its first call needs, so it may wait for holders.
//   INVALID_ARGUMENT     also: corpora of different geometries, a duplicate chunk, or an ordinal or
//                        offset beyond its limit.
//   RESOURCE_EXHAUSTED   with policy cache, the rows do not fit; or a holder is overloaded.
//   NOT_FOUND, UNAVAILABLE, DEADLINE_EXCEEDED, FAILED_PRECONDITION  as ckv_attend.
ckv_status ckv_context_open(ckv_requester* requester, const ckv_context_spec* spec,
                            ckv_context** context);
// Closes the context and frees it. Tickets in progress continue to their end. No ckv_attend or
// ckv_submit over the context may be in progress on another thread.
void ckv_context_close(ckv_context* context);
// Returns the number of rows of all its chunks, as selections count them. 0 for NULL.
uint64_t ckv_context_token_count(const ckv_context* context);

// The caller's own rows, for example a sequence's suffix. They are never sent. They are attended on
// the calling thread while the holders compute, and merged last. Their RoPE bands are at positions
// relative to the same origin as those of the query rows. Rows in blocks of an engine's paged cache
// are attended in place: row i is row i % block_rows of block blocks[i / block_rows].
typedef struct ckv_own_rows {
  size_t struct_size;
  // [row_count] rows of the corpus' dtype, at the call's layer. With `blocks`, the first row of
  // block 0 of the cache.
  const void* rows;
  uint32_t row_count;     //
  uint32_t stride_bytes;  // from one row to the next; by default the bytes of a row
  uint32_t memory;        // the memory kind of `rows`: CKV_MEMORY_HOST, the default, ...
  uint32_t reserved;
  // uint32_t [row_count of the segment]: query row i sees the first visible[i] rows. If NULL, all.
  const uint32_t* visible;
  // uint32_t [row_count / block_rows, rounded up], in host memory: the blocks that contain the
  // rows. If NULL, rows are contiguous at stride_bytes. UNIMPLEMENTED if the backend's kernels do
  // not read blocks.
  const uint32_t* blocks;
  uint32_t block_rows;          // rows of a block
  uint32_t block_count;         // blocks of the cache; every entry of `blocks` is below it
  uint64_t block_stride_bytes;  // from one block to the next; by default block_rows x stride_bytes
  // If not NULL, only these of the rows are attended, as `selected` of ckv_segment. An index counts
  // the own rows; others than theirs are skipped.
  const int32_t* selected;
  uint32_t selected_count;
  uint32_t selected_group_rows;
} ckv_own_rows;

// Consecutive query rows that attend the same rows.
typedef struct ckv_segment {
  size_t struct_size;
  // The rows to attend: set exactly one of the two. `part` makes a temporary context for this call,
  // which routes. A call with a part has one segment, without own rows, and cannot be submitted.
  const ckv_context* context;
  const ckv_part* part;
  uint32_t row_begin;
  uint32_t row_count;  // 0 is allowed if this is the only segment: all rows of the call
  // A selection. If NULL, every row is attended. int32_t [groups][selected_count]: query rows are
  // in groups of selected_group_rows (by default 1), and each group attends the rows in its list.
  // An index counts the rows of the context, chunk by chunk. -1 is skipped. A repeated index counts
  // twice. Own rows have a selection of their own.
  const int32_t* selected;
  uint32_t selected_count;
  uint32_t selected_group_rows;
  const ckv_own_rows* own;  // at most 16, merged after the chunks, one after another
  uint32_t own_count;
  // Instead of a selection, the rows that ckv_choose_rows chose. Query rows are in groups of
  // choice_group_rows (by default 1), the heads of one token: group g attends the rows of token
  // choice_token_begin + g. Not with a part. The choice may be freed once ckv_attend or ckv_submit
  // has returned.
  uint32_t choice_token_begin;
  const ckv_choice* choice;
  uint32_t choice_group_rows;
  uint32_t reserved;
} ckv_segment;

// The precision of computation, at holders and here. Default: exact for f32 partials, wire for
// bf16.
enum {
  CKV_PRECISION_DEFAULT = 0,
  CKV_PRECISION_EXACT = 1,  // f32
  CKV_PRECISION_WIRE = 2,   // error below what a bf16 partial loses in any case
  CKV_PRECISION_FAST = 3,   // weights in bf16, like GPU kernels
};

// Attends one layer for one or many sequences. The query rows of all segments that one holder
// attends are sent together.
typedef struct ckv_attend_call {
  size_t struct_size;
  uint32_t layer;
  uint32_t row_count;  // query rows, 1 to 65536
  // bf16 [row_count][d_qk]. First d_qk - d_rope values, absorbed into the latent space; then the
  // RoPE band, rotated to the query's own position. Not multiplied by the softmax scale.
  const uint16_t* q;
  uint32_t q_stride;  // values from one row to the next; by default d_qk
  uint32_t q_memory;  // the memory kind of q: CKV_MEMORY_HOST, the default, ...
  // The output: f32 o [row_count][d_v], m [row_count], l [row_count] (ckv_partial.h). Written once
  // every chunk has answered exactly once. Unchanged after an error of ckv_attend.
  float* o;
  float* m;
  float* l;
  uint32_t out_memory;  // the memory kind of o, m and l
  // The type of partials on the wire: CKV_DTYPE_BF16, the default, or CKV_DTYPE_F32. Only with f32,
  // and only within one kernel target, are an answer's bits independent of where chunks are stored.
  uint32_t wire;
  // Consecutive segments that together contain all rows of q.
  const ckv_segment* segments;
  uint32_t segment_count;
  uint32_t precision;  // CKV_PRECISION_DEFAULT, ...
  // If not 0, a holder whose exact rows are on disk may answer from fp8 copies. The report shows if
  // any did.
  uint32_t allow_approximate;
  uint32_t reserved;
  uint64_t timeout_ns;
  // A stream of the engine. q, own rows and the output are touched only after the work on it
  // (ckv_device.h). If NULL, they are ready. Borrowed until the call is done.
  const ckv_stream* after;
  const char* traceparent;  // W3C Trace Context; names the call in logs and errors; may be NULL
} ckv_attend_call;

// The work of a call. The library writes all of it, but only on success.
typedef struct ckv_attend_report {
  size_t struct_size;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t compute_ns_max;  // kernel time of the slowest holder
  uint64_t elapsed_ns;      // from the call's first attempt to its answer
  // The part of elapsed_ns before the last attempt: failed attempts, and waits for holders.
  uint64_t lost_ns;
  // Pairs of a query row and an attended row: at holders, locally cached, and the caller's own.
  uint64_t routed_pairs, cached_pairs, own_pairs;
  // Bytes cached locally for the call's contexts since their last report.
  uint64_t prefetched_bytes;
  uint32_t failed_attempt_count;
  uint32_t holder_count;
  uint32_t precision;           // the precision that was used; never the default
  uint32_t approximate;         // 1: some rows were fp8 copies
  uint32_t targets_differ;      // 1: different kernel targets computed the partials
  uint32_t same_bits_anywhere;  // 1: any placement, replica or batch of this target gives the bits
  uint32_t kernel_target;       // the number of the one target (proto/kernel_target.h), or 0
  uint32_t reserved;
} ckv_attend_report;

// Attends, and returns with the answer. `report` may be NULL. There is no causal mask: a query row
// sees every row of the chunks, unless a selection limits it. Within the timeout, a call reopens
// failed sessions, tries replicas, and waits as long as overloaded holders request. If no holder of
// a chunk answers, the call waits for one until shortly before the timeout. Without a timeout, it
// waits for at most 10 s.
//   INVALID_ARGUMENT     also: segments that do not contain all rows; a layer, count, width or
//                        index beyond its limit; contexts of different geometries. Or memory of a
//                        kind that the requester's backend does not reach.
//   NOT_FOUND            a holder no longer has a chunk: resolve the corpus again.
//   UNAVAILABLE          a holder and its replicas could not be reached in time. The message names
//                        the cause for each.
//   RESOURCE_EXHAUSTED   a holder is overloaded. ckv_last_retry_after_ns has its hint.
//   DEADLINE_EXCEEDED    a holder did not answer in time, or too many calls were in progress here.
//   FAILED_PRECONDITION  geometry or wire version differ from a holder's.
//   INTERNAL             a device failed. The contents of the output are then undefined.
ckv_status ckv_attend(ckv_requester* requester, const ckv_attend_call* call,
                      ckv_attend_report* report);

// A call in flight. It has no thread of its own: all work is done in the functions below, on the
// calling thread. Only one thread at a time may use a ticket. Free it before its requester is
// closed.
typedef struct ckv_ticket ckv_ticket;

// Posts the queries of a call, and returns before the answer is there. Some memory stays borrowed
// until the ticket is done, cancelled or freed: q, selections, own rows with `visible` and
// `blocks`, o, m, l, and `report`. Until then, the contents of o, m and l are undefined. After the
// return, the structs of the call may be freed and its contexts closed. Waits for a holder if it
// must open a session.
//   RESOURCE_EXHAUSTED   call_count_max calls are in progress.
//   INVALID_ARGUMENT     as ckv_attend; also, a segment has a part. A selection index beyond the
//                        context is an error of the ticket, as are all other errors.
ckv_status ckv_submit(ckv_requester* requester, const ckv_attend_call* call,
                      ckv_attend_report* report, ckv_ticket** ticket);

// Checks for the answer. If the call is done, sets *done to 1 and returns the result, as
// ckv_attend. With OK the answer is complete, in device memory, too: any stream may read it without
// an event. If the call is not done, sets *done to 0 and returns OK. The first ckv_poll or ckv_wait
// attends the call's own rows. If a holder failed, this call may open another session, and wait for
// that.
ckv_status ckv_poll(ckv_ticket* ticket, int* done);
// As ckv_poll, but waits for up to `timeout_ns`. Ends earlier at the call's own deadline.
ckv_status ckv_wait(ckv_ticket* ticket, uint64_t timeout_ns, int* done);
// Cancels the call: it is done, with CANCELLED, unless it was done before. After the return,
// nothing more is written.
void ckv_cancel(ckv_ticket* ticket);
// Frees the ticket. Cancels the call if it is not done.
void ckv_ticket_free(ckv_ticket* ticket);

#ifdef __cplusplus
}
#endif
