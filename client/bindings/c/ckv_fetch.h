// Rows in C: chunks fetched into the caller's memory, at once or layer by layer. Include ckv.h.

#pragma once

#include "ckv.h"
#include "ckv_device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Blocks of an engine's paged cache, as the destination of rows. Row r of the table is row r %
// block_rows of block table[r / block_rows].
typedef struct ckv_block_place {
  size_t struct_size;
  void** layers;          // [layers of the call]: the first row of block 0 of each layer's cache
  const uint32_t* table;  // [table_count], in host memory; each entry is below block_count
  uint32_t table_count;
  uint32_t block_count;         // blocks of the cache
  uint32_t block_rows;          // rows of a block, each of the corpus' row_bytes bytes
  uint32_t reserved;            //
  uint64_t block_stride_bytes;  // from one block to the next; by default block_rows x row_bytes
  uint64_t table_begin;         // the row of the table for the call's first token
  // The tokens of the call that are written: [token_begin, token_end). By default all.
  uint64_t token_begin;
  uint64_t token_end;
} ckv_block_place;

// Rows of the chunks [chunk_begin, chunk_end) and layers [layer_begin, layer_end) of a corpus.
// Tokens are numbered across the chunks, one after another. Token t of layer l is written to
//   rows + (l - layer_begin) x layer_stride + t x token_stride
// Any layout whose rows do not overlap is allowed: [layer][token], [token][layer], an engine's
// blocks.
typedef struct ckv_fetch_call {
  size_t struct_size;
  const ckv_corpus* corpus;
  uint32_t chunk_begin;
  uint32_t chunk_end;  // by default the end of the corpus
  uint32_t layer_begin;
  uint32_t layer_end;  // by default the end of the model
  // A slice of each row, in bytes; both are multiples of 4. By default the whole row. With
  // `rotate`, the slice must contain all of the RoPE band or none of it.
  uint32_t column_begin;
  uint32_t column_bytes;
  // If `rotate` is not 0, RoPE bands are rotated so that the first token is at `position`, at most
  // 2^40. If it is 0, rows stay at their canonical positions.
  uint64_t position;
  uint32_t rotate;
  // The memory kind of `rows`: CKV_MEMORY_HOST, the default, ... For device memory, sequences of
  // rows are copied from where the network put them. They are copied row by row if token_stride is
  // not the bytes fetched of each row.
  uint32_t rows_memory;
  void* rows;             // at an even address
  uint64_t rows_bytes;    // size of `rows`; a call that would exceed it is refused
  uint64_t layer_stride;  // bytes, even; by default the number of tokens x token_stride
  uint64_t token_stride;  // bytes, even; by default the bytes fetched of each row
  // If not NULL, rows are written to blocks; `rows`, its bytes and its strides are not set. Only
  // whole rows. Only the library may write to the blocks. The struct, the table and the array of
  // layers may be freed after the call has returned.
  const ckv_block_place* place;
  // A stream of the engine. `rows` is written only after the work that is on it when the fetch
  // begins (ckv_device.h). If NULL, immediately. Borrowed until the fetch ends, or its ticket is
  // freed.
  const ckv_stream* after;
  uint64_t timeout_ns;
  // Only for tickets: how long chunks may wait until their first row arrives. Chunks without a
  // received row by then are not fetched (early return). Neither are chunks whose holder requests a
  // retry later than that. By default there is no limit but the timeout.
  uint64_t early_return_ns;
  const char* traceparent;  // as in ckv_attend_call
  // If not 0, the layers' index keys are fetched instead of their rows: index_key_bytes each, at
  // their canonical positions. Columns and `rotate` are not set. INVALID_ARGUMENT if the corpus has
  // none.
  uint32_t index_keys;
  uint32_t reserved;
} ckv_fetch_call;

// The work of a fetch. The library writes all of it.
typedef struct ckv_fetch_report {
  size_t struct_size;
  uint64_t row_count;  // rows of all layers
  uint64_t bytes;
  uint64_t elapsed_ns;
  uint32_t chunk_count;        // chunks fetched
  uint32_t not_fetched_count;  // chunks not fetched, because of early_return_ns
} ckv_fetch_report;

// Fetches, and returns once all rows are there. Rows are compared with their checksums, unless they
// arrive through memory shared with the holder. `report` may be NULL. After an error, the contents
// of the destination are undefined. Nothing is written to it after the return.
//   INVALID_ARGUMENT     also: a range, slice or position beyond its limit; rows that overlap or do
//                        not fit rows_bytes; an odd address or stride; early_return_ns. Or memory
//                        of a kind that the requester's backend does not reach.
//   INTERNAL             a device failed.
//   DATA_LOSS            rows do not match their checksum.
//   NOT_FOUND, UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, FAILED_PRECONDITION
//                        as ckv_attend.
ckv_status ckv_fetch(ckv_requester* requester, const ckv_fetch_call* call,
                     ckv_fetch_report* report);

// A fetch in progress, on its own thread. Layers arrive in order, so an engine may begin with the
// first while others are in flight. Within a layer, chunks arrive in order. Any number of threads
// may use a ticket at once. Free it before its requester is closed.
typedef struct ckv_fetch_ticket ckv_fetch_ticket;

// Begins a fetch and returns immediately. `call->rows` stays borrowed until the ticket is freed.
//   INVALID_ARGUMENT     as ckv_fetch. All other errors are reported by the ticket.
ckv_status ckv_fetch_begin(ckv_requester* requester, const ckv_fetch_call* call,
                           ckv_fetch_ticket** ticket);

// Waits for up to `timeout_ns` until the layer and all layers before it are there, then sets *done
// to 1. With OK the rows are complete, in device memory, too: any stream may read them without an
// event. If the time passed first, sets *done to 0 and returns OK. If the fetch ended without the
// layer, sets *done to 1 and returns the fetch's error. Rows of a complete layer stay valid, even
// if the fetch fails later. The first layer determines which chunks are not fetched; their memory
// is undefined.
//   INVALID_ARGUMENT     also: the layer is not one of the call's.
//   CANCELLED, and the errors of ckv_fetch.
ckv_status ckv_fetch_wait_layer(ckv_fetch_ticket* ticket, uint32_t layer, uint64_t timeout_ns,
                                int* done);
// As ckv_fetch_wait_layer, for the whole fetch. `report` may be NULL.
ckv_status ckv_fetch_wait(ckv_fetch_ticket* ticket, uint64_t timeout_ns, int* done,
                          ckv_fetch_report* report);
// Lists the chunks not fetched because of early_return_ns: their ordinals in the corpus, ascending.
// Writes at most `capacity` of them, and their number to *count. A chunk with a received row by
// then is fetched completely, so these are the last chunks of the call.
//   FAILED_PRECONDITION  the first layer is not complete yet, so the list is not determined.
ckv_status ckv_fetch_not_fetched(ckv_fetch_ticket* ticket, uint32_t* chunks, uint32_t capacity,
                                 uint32_t* count);
// Cancels the fetch. It ends with CANCELLED, or with its own result if that is earlier, for example
// DEADLINE_EXCEEDED if no more rows arrive. Complete layers stay valid. Returns immediately. Blocks
// are not written to after the return, so they may be reused. Other memory may be written to until
// the ticket is freed.
void ckv_fetch_cancel(ckv_fetch_ticket* ticket);
// Cancels, waits for the thread, and frees the ticket. The thread ends when the next rows arrive,
// or at the call's deadline if none do. Nothing is written to the memory after that.
void ckv_fetch_ticket_free(ckv_fetch_ticket* ticket);

#ifdef __cplusplus
}
#endif
