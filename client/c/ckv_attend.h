// Attention in C: contexts, calls, and tickets of calls in flight. Include ckv.h.

#pragma once

#include "ckv.h"
#include "ckv_device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Chunks of one corpus, and where they stand.
typedef struct ckv_part {
  size_t struct_size;
  const ckv_corpus* corpus;
  // Ordinals in the corpus, each at most once, at least one. If NULL, all chunks of it.
  const uint32_t* chunks;
  // How far each stands from its canonical position, in tokens; at most 2^40 either way. If NULL,
  // 0. With it, `chunks` is needed.
  const int64_t* offsets;
  uint32_t chunk_count;  // the length of both arrays
  uint32_t reserved;
  int64_t offset;  // is added to the offset of each
} ckv_part;

typedef struct ckv_context ckv_context;

// How the rows of a context are attended. No choice changes an answer's meaning.
enum {
  // ckv decides for each run of chunks, and pulls in the background what pays.
  CKV_POLICY_AUTO = 0,
  CKV_POLICY_ROUTE = 1,  // every query is routed to the holders
  CKV_POLICY_NEAR = 2,   // all rows are pulled while the context is opened, and attended here
};

typedef struct ckv_context_spec {
  size_t struct_size;
  // Corpora of one geometry, at most 16. Answers merge one tree for each, in this order.
  const ckv_part* parts;
  uint32_t part_count;
  uint32_t policy;
  // The caller's knowledge of its future, or 0. It changes no answer.
  uint32_t expect_steps;   // decode steps that will attend the context
  uint32_t expect_agents;  // sequences here that will attend the same chunks
  uint64_t timeout_ns;
} ckv_context_spec;

// Opens a context: what a sequence attends, resolved once for all its calls. Opens the sessions
// that its first call needs, so it may wait for holders.
//   INVALID_ARGUMENT     also: corpora of different geometries, a chunk that is there twice, an
//                        ordinal or offset beyond its limit.
//   RESOURCE_EXHAUSTED   policy near, and the rows do not fit; or a holder is overloaded.
//   NOT_FOUND, UNAVAILABLE, DEADLINE_EXCEEDED, FAILED_PRECONDITION  as ckv_attend.
ckv_status ckv_context_open(ckv_requester* requester, const ckv_context_spec* spec,
                            ckv_context** context);
// Ends the context and frees it. Tickets in progress go on to their end. No ckv_attend or
// ckv_submit over it may be in progress on another thread.
void ckv_context_close(ckv_context* context);
// Returns the rows of all its chunks, as selections count them. 0 for NULL.
uint64_t ckv_context_token_count(const ckv_context* context);

// Rows of the caller's, as a sequence's own suffix. They never travel: they are attended on the
// calling thread while the holders compute, and merged last. Their RoPE bands stand at positions
// that the query rows count from. Rows in the blocks of an engine's paged cache are attended there:
// row i is row i % block_rows of the block blocks[i / block_rows].
typedef struct ckv_own_rows {
  size_t struct_size;
  // [row_count] rows of the corpus' dtype, at the call's layer. With `blocks`, the first row of the
  // cache's block 0.
  const void* rows;
  uint32_t row_count;     //
  uint32_t stride_bytes;  // from one row to the next; by default the bytes of a row
  // uint32_t [row_count of the segment]: query row i sees the first visible[i] rows. If NULL, all.
  const uint32_t* visible;
  uint32_t memory;  // the kind of memory of `rows`: CKV_MEMORY_HOST, the default, ... Since 1.2
  uint32_t reserved;
  // Since 1.3. uint32_t [row_count / block_rows, rounded up], in host memory: the blocks that the
  // rows lie in. If NULL, rows lie one after another. UNIMPLEMENTED if the backend's kernels do not
  // read blocks.
  const uint32_t* blocks;
  uint32_t block_rows;          // rows of a block
  uint32_t block_count;         // blocks of the cache; each one named is below it
  uint64_t block_stride_bytes;  // from one block to the next; by default block_rows x stride_bytes
} ckv_own_rows;

// Consecutive query rows that attend the same.
typedef struct ckv_segment {
  size_t struct_size;
  // The rows that they attend. One of both is set. `part` makes a context for the call alone, which
  // routes. A call with a part has one segment, without own rows, and cannot be submitted.
  const ckv_context* context;
  const ckv_part* part;
  uint32_t row_begin;
  uint32_t row_count;  // 0 in the only segment: all rows of the call
  // A selection. If NULL, every row is attended. int32_t [groups][selected_count]: query rows come
  // in groups of selected_group_rows (by default 1), and each group attends the rows of its list.
  // An index counts the rows of the context, chunk by chunk. -1 is skipped. One that repeats counts
  // twice. Own rows are not selected.
  const int32_t* selected;
  uint32_t selected_count;
  uint32_t selected_group_rows;
  const ckv_own_rows* own;  // at most 16, merged after the chunks, one after another
  uint32_t own_count;
  uint32_t reserved;
} ckv_segment;

// How exactly holders and this process compute. Default: exact for f32 partials, wire for bf16.
enum {
  CKV_GRADE_DEFAULT = 0,
  CKV_GRADE_EXACT = 1,  // f32
  CKV_GRADE_WIRE = 2,   // below what a bf16 partial loses anyway
  CKV_GRADE_FAST = 3,   // weights in bf16, as kernels of GPUs do
};

// Attends one layer for one or many sequences. The rows of all segments that one holder attends
// travel together.
typedef struct ckv_attend_call {
  size_t struct_size;
  uint32_t layer;
  uint32_t row_count;  // query rows, 1 to 65536
  // bf16 [row_count][d_qk]. First d_qk - d_rope values, absorbed into the latent space; then the
  // RoPE band, rotated to the query's own position. Without the softmax scale.
  const uint16_t* q;
  uint32_t q_stride;  // values from one row to the next; by default d_qk
  // The type of partials on the wire: CKV_DTYPE_BF16, the default, or CKV_DTYPE_F32. Answers have
  // the same bits wherever chunks lie only with f32, and only of one kernel target.
  uint32_t wire;
  // The place of the answer: f32 o [row_count][d_v], m [row_count], l [row_count] (ckv_partial.h).
  // It is written once every chunk has answered exactly once. After an error of ckv_attend it is as
  // it was.
  float* o;
  float* m;
  float* l;
  // One after another, they cover the rows of q.
  const ckv_segment* segments;
  uint32_t segment_count;
  uint32_t grade;
  uint64_t timeout_ns;
  // Not 0: a holder whose exact rows are on disk may answer from fp8 copies. The report says so.
  uint32_t allow_approximate;
  uint32_t reserved;
  const char* traceparent;  // W3C Trace Context's; names the call in logs and errors; may be NULL
  // Since 1.2: the kinds of memory of q, and of o, m and l: CKV_MEMORY_HOST, the default, ...
  uint32_t q_memory;
  uint32_t out_memory;
  // The stream of the engine after which q, own rows and the answer's place may be touched
  // (ckv_device.h). If NULL, they are ready. Borrowed until the call is done.
  const ckv_stream* after;
} ckv_attend_call;

// The work of a call. The library writes all of it, on success alone.
typedef struct ckv_attend_report {
  size_t struct_size;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t compute_ns_max;  // kernel time of the slowest holder
  uint64_t elapsed_ns;      // from the call's first attempt to its answer
  // Pairs of a query row and a row that it attended: at holders, near ones, the caller's own.
  uint64_t routed_pairs, near_pairs, own_pairs;
  uint64_t pulled_bytes;  // bytes that came near for the call's contexts since their last report
  uint32_t holder_count;
  uint32_t grade;               // that was computed in; never the default
  uint32_t approximate;         // 1: some rows were fp8 copies
  uint32_t targets_differ;      // 1: partials were made by different kernel targets
  uint32_t same_bits_anywhere;  // 1: any placement, replica or batch of this target gives the bits
  uint32_t kernel_target;       // the number of the one target (proto/kernel_target.h), or 0
  // Since 1.2: the number of failed attempts, and the part of elapsed_ns before the last attempt,
  // spent in failed attempts and in waits for holders.
  uint64_t lost_ns;
  uint32_t failed_attempt_count;
  uint32_t reserved;
} ckv_attend_report;

// Attends, and returns with the answer. `report` may be NULL. There is no causal mask: every query
// row sees every row of the chunks that it does not select otherwise. Within the timeout, a call
// opens a failed session again, asks replicas, and waits as overloaded holders ask. If no holder of
// a chunk answers, it waits for one, until shortly before the timeout. Without a timeout, it waits
// for at most 10 s.
//   INVALID_ARGUMENT     also: segments that do not cover the rows, a layer, count, width or index
//                        beyond its limit, contexts of different geometries. Or memory of a kind
//                        that the requester's backend does not reach.
//   NOT_FOUND            a holder no longer has a chunk: resolve the corpus again.
//   UNAVAILABLE          a holder and its replicas could not be reached in time. The message names
//                        the cause for each.
//   RESOURCE_EXHAUSTED   a holder is overloaded. ckv_last_retry_after_ns has its hint.
//   DEADLINE_EXCEEDED    a holder did not answer in time, or too many calls were in progress here.
//   FAILED_PRECONDITION  geometry or wire version differ from a holder's.
//   INTERNAL             a device failed. The answer's memory means nothing then.
ckv_status ckv_attend(ckv_requester* requester, const ckv_attend_call* call,
                      ckv_attend_report* report);

// A call in flight. It holds no thread: nothing happens but in the functions below, on the thread
// that calls them. Use a ticket by one thread at a time. Free it before its requester is closed.
typedef struct ckv_ticket ckv_ticket;

// Posts the queries of a call, and returns before the answer is there. Some memory stays
// borrowed until the ticket is done, cancelled or freed: q, selections, own rows with `visible` and
// `blocks`, o, m, l, and `report`. The structs of the call may go once this has returned,
// and its contexts may be closed. Until then the answer's memory means nothing. To open a session
// that is not up, it waits for the holder.
//   RESOURCE_EXHAUSTED   call_count_max calls are in progress.
//   INVALID_ARGUMENT     as ckv_attend; also, a segment has a part. An index of a selection beyond
//                        the context is the ticket's error, and so are all others.
ckv_status ckv_submit(ckv_requester* requester, const ckv_attend_call* call,
                      ckv_attend_report* report, ckv_ticket** ticket);

// Looks whether the answer came. If the call is done, sets *done to 1 and returns how it ended, as
// ckv_attend. With OK the answer is whole, in memory of a device, too: any stream may read it, and
// needs no event. Otherwise sets it to 0 and returns OK. The first of these calls attends the
// call's own rows. If a holder failed, the call may open another session in here, and waits for
// that.
ckv_status ckv_poll(ckv_ticket* ticket, int* done);
// The same, but waits for up to `timeout_ns`. The call's own deadline ends it too.
ckv_status ckv_wait(ckv_ticket* ticket, uint64_t timeout_ns, int* done);
// Gives the call up: it is done, with CANCELLED, unless it was done before. Nothing is written any
// more once this has returned.
void ckv_cancel(ckv_ticket* ticket);
// Frees the ticket, and cancels a call that is not done.
void ckv_ticket_free(ckv_ticket* ticket);

#ifdef __cplusplus
}
#endif
