// Memory of a device in C: what computes here, kinds of memory, and streams. Include ckv.h.
//
//   ckv_open_options options = {.struct_size = sizeof options, .directory = "127.0.0.1:7400",
//                               .backend = "cuda"};
//   ckv_stream* stream;                               // once for each stream of the engine
//   if (ckv_stream_open(requester, native, &stream) != CKV_OK) die(ckv_last_error(requester));
//
//   call.q_memory = call.out_memory = CKV_MEMORY_DEVICE;  // q, o, m and l lie on the GPU
//   call.after = stream;                                  // the kernels that make q are on it
//
//   if (ckv_submit(requester, &call, NULL, &ticket) != CKV_OK) die(ckv_last_error(requester));
//   /* the engine queues more work */
//   if (ckv_wait(ticket, CKV_TIMEOUT_NONE, &done) != CKV_OK) die(ckv_last_error(requester));
//   /* the answer is whole in o, m and l: any stream may read it from here on */
//
// BACKENDS. The backend of a requester computes here: it turns queries, attends own and near rows,
// and merges. ckv_open_options.backend names it. A GPU's backend is the library libckv_cuda.so. It
// is looked for in the folder of libckv.so, links resolved, then in the folder ckv below that one.
// So PREFIX/lib/libckv.so and PREFIX/bin/ckvd find the same PREFIX/lib/ckv/libckv_cuda.so. No
// variable names another place. Both libraries must be of one build.
//
// ORDER. `after` of a call is a stream of the engine. ckv touches q, own rows and the place of the
// answer once the work that the engine has put on that stream is done. If it is NULL, they are
// ready. ckv puts no work on the engine's stream, and the stream never waits for ckv.
//   ckv_attend, ckv_submit     q: work that was there when the call began. Own rows and the
//                              answer's place: also work that came until the queries were sent, for
//                              a ticket as a poll or wait found. So work on this stream must not
//                              wait for the ticket.
//   ckv_fetch                  work that was there when the call began
//   ckv_fetch_begin            work that was there when it began. Work that comes later, as that of
//                              the first layers, delays no rows
// A call that is made again after a holder failed may wait for later work, too. Work that takes
// longer than the call may is waited for all the same, and the call then ends with
// DEADLINE_EXCEEDED.
//
// RESULTS are whole once ckv_attend or ckv_fetch has returned CKV_OK. So are those of a ticket once
// ckv_poll or ckv_wait has returned CKV_OK with *done = 1, and a layer's once ckv_fetch_wait_layer
// has. Every stream and the host may read them from then on, without an event. Before that they
// mean nothing.
//
// Selections, `visible`, and all structs are host memory, and so is what ckv_partial.h and
// ckv_put.h take.

#pragma once

#include "ckv.h"

#ifdef __cplusplus
extern "C" {
#endif

// The kind of some memory. One that the requester's backend does not reach is INVALID_ARGUMENT.
enum {
  CKV_MEMORY_HOST = 0,    // memory of this process
  CKV_MEMORY_PINNED = 1,  // page-locked host memory that the device reads and writes itself
  CKV_MEMORY_DEVICE = 2,  // memory of the device: needs a requester with a GPU's backend
};

// A stream that an engine owns, as the calls of ckv come after it. Any threads may use it at once,
// while the engine puts work on the native stream.
typedef struct ckv_stream ckv_stream;

// Makes a stream of `native`: a cudaStream_t of the device, or NULL for its default stream. The
// native stream must live until ckv_stream_free. Does not wait.
//   UNIMPLEMENTED        the processor computes for this requester: it was not opened with a GPU's
//                        backend.
ckv_status ckv_stream_open(ckv_requester* requester, void* native, ckv_stream** stream);
// Frees it, and not the native stream. No call that comes after it may be in progress: tickets are
// done or freed, and so are those of fetches. It may be freed after its requester.
void ckv_stream_free(ckv_stream* stream);

// Returns one line for people: what computes, and why. For example "backend cuda:
// /usr/lib/ckv/libckv_cuda.so, kernels CUDA_SM90". It stays valid until the requester is closed.
// "" for NULL.
const char* ckv_backend_told(const ckv_requester* requester);

#ifdef __cplusplus
}
#endif
