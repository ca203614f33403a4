// Rows in C: chunks fetched into the caller's memory, at once or layer by layer. Include ckv.h.

#pragma once

#include "ckv.h"
#include "ckv_device.h"

#ifdef __cplusplus
extern "C" {
#endif

// The blocks of an engine's paged cache, as the place of rows. Row r of the table is row
// r % block_rows of the block table[r / block_rows]. Since 1.3.
typedef struct ckv_block_place {
  size_t struct_size;
  void** layers;          // [layers of the call]: the first row of block 0 of each layer's cache
  const uint32_t* table;  // [table_count], in host memory; each is below block_count
  uint32_t table_count;
  uint32_t block_count;         // blocks of the cache
  uint32_t block_rows;          // rows of a block, each of the corpus' row_bytes
  uint32_t reserved;            //
  uint64_t block_stride_bytes;  // from one block to the next; by default block_rows x row_bytes
  uint64_t table_begin;         // the row of the table that the call's first token stands at
  // The tokens of the call that are written: [token_begin, token_end). By default all.
  uint64_t token_begin;
  uint64_t token_end;
} ckv_block_place;

// Rows of the chunks [chunk_begin, chunk_end) and layers [layer_begin, layer_end) of a corpus.
// Tokens are counted over the chunks, one after another. Token t of layer l goes to
//   rows + (l - layer_begin) x layer_stride + t x token_stride
// Any layout whose rows do not overlap will do: [layer][token], [token][layer], an engine's blocks.
typedef struct ckv_fetch_call {
  size_t struct_size;
  const ckv_corpus* corpus;
  uint32_t chunk_begin;
  uint32_t chunk_end;  // by default the end of the corpus
  uint32_t layer_begin;
  uint32_t layer_end;     // by default the end of the model
  void* rows;             // at an even address
  uint64_t rows_bytes;    // bytes that `rows` has; rows beyond them are refused
  uint64_t layer_stride;  // bytes, even; by default the tokens x token_stride
  uint64_t token_stride;  // bytes, even; by default the bytes that are fetched of each row
  // A slice of each row, in bytes; both are multiples of 4. By default the whole row. With
  // `rotate`, it has all of the RoPE band or none of it.
  uint32_t column_begin;
  uint32_t column_bytes;
  uint64_t timeout_ns;
  // Tickets only: how long chunks may wait for their turn. Those of which no row has come by then
  // are handed back, and not fetched. So are those whose holder asks to come back later than that.
  // By default never.
  uint64_t hand_back_ns;
  // If `rotate` is not 0, bands are rotated so that the first token stands at `position`, at most
  // 2^40. If it is 0, rows stay at their canonical positions.
  uint64_t position;
  uint32_t rotate;
  uint32_t reserved;
  const char* traceparent;  // as in ckv_attend_call
  // The kind of memory of `rows`: CKV_MEMORY_HOST, the default, ... Since 1.2. Into memory of a
  // device, runs of rows are copied from where the network put them. They are copied row by row if
  // token_stride is not the bytes that are fetched of each row.
  uint32_t rows_memory;
  uint32_t reserved2;
  // The stream of the engine after which `rows` may be written: after the work that is there when
  // the fetch begins (ckv_device.h). If NULL, at once. Borrowed until the fetch ends, or its ticket
  // is freed.
  const ckv_stream* after;
  // Since 1.3: rows go to blocks, and `rows`, its bytes and its strides are not set. Whole rows
  // alone. Nobody but the library writes to blocks. The struct, the table and the array of layers
  // may go once the call has returned.
  const ckv_block_place* place;
} ckv_fetch_call;

// The work of a fetch. The library writes all of it.
typedef struct ckv_fetch_report {
  size_t struct_size;
  uint64_t row_count;  // rows of all layers
  uint64_t bytes;
  uint64_t elapsed_ns;
  uint32_t chunk_count;        // chunks fetched
  uint32_t not_fetched_count;  // chunks handed back
} ckv_fetch_report;

// Fetches, and returns once all rows are there. Rows are compared with their checksums, unless they
// come through memory shared with the holder. `report` may be NULL. After an error the memory means
// nothing. Nothing is written to it once this has returned.
//   INVALID_ARGUMENT     also: a range, slice or position beyond its limit; rows that overlap or do
//                        not fit rows_bytes; an odd address or stride; hand_back_ns. Or memory of
//                        a kind that the requester's backend does not reach.
//   INTERNAL             a device failed.
//   DATA_LOSS            rows do not match their checksum.
//   NOT_FOUND, UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, FAILED_PRECONDITION
//                        as ckv_attend.
ckv_status ckv_fetch(ckv_requester* requester, const ckv_fetch_call* call,
                     ckv_fetch_report* report);

// A fetch under way, on a thread of its own. Layers come in order, so an engine may begin with the
// first while the others are on their way. Within a layer, chunks come in order. Any threads may
// use it at once; free it before its requester is closed.
typedef struct ckv_fetch_ticket ckv_fetch_ticket;

// Begins a fetch and returns at once. `call->rows` stays borrowed until the ticket is freed.
//   INVALID_ARGUMENT     as ckv_fetch. All other errors are the ticket's.
ckv_status ckv_fetch_begin(ckv_requester* requester, const ckv_fetch_call* call,
                           ckv_fetch_ticket** ticket);

// Waits for up to `timeout_ns` until the layer is there, and all before it. Then sets *done to 1.
// With OK the rows are whole, in memory of a device, too: any stream may read them, and needs no
// event. Sets it to 0 and returns OK if the time passed first. If the fetch ended without the
// layer, sets it to 1 and returns how it ended. Rows of a layer that is there stay valid, whatever
// comes later. The first layer settles which chunks are handed back; their memory means nothing.
//   INVALID_ARGUMENT     also: the layer is not one of the call's.
//   CANCELLED, and the errors of ckv_fetch.
ckv_status ckv_fetch_wait_layer(ckv_fetch_ticket* ticket, uint32_t layer, uint64_t timeout_ns,
                                int* done);
// The same for the whole fetch. `report` may be NULL.
ckv_status ckv_fetch_wait(ckv_fetch_ticket* ticket, uint64_t timeout_ns, int* done,
                          ckv_fetch_report* report);
// Lists the chunks that were handed back: their ordinals in the corpus, rising. Writes at most
// `capacity` of them, and their number to *count. Chunks of which a row had come by hand_back_ns
// are fetched whole, so these are the last chunks of the call.
//   FAILED_PRECONDITION  the first layer is not there yet, so it is not settled.
ckv_status ckv_fetch_not_fetched(ckv_fetch_ticket* ticket, uint32_t* chunks, uint32_t capacity,
                                 uint32_t* count);
// Gives the fetch up. It ends with CANCELLED, or as it would have ended if that comes first: with
// DEADLINE_EXCEEDED if no more rows come. Layers that are there stay. Returns at once. Blocks are
// not written to once it has returned, so others may have them. Other memory may be, until the
// ticket is freed.
void ckv_fetch_cancel(ckv_fetch_ticket* ticket);
// Cancels, waits for the thread, and frees the ticket. The thread ends with the next rows that
// come, or at the call's deadline if none do. Nothing is written to the memory after that.
void ckv_fetch_ticket_free(ckv_fetch_ticket* ticket);

#ifdef __cplusplus
}
#endif
