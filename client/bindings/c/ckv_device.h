// Device memory in C: the backend that computes here, memory kinds, and streams. Include ckv.h.
//
//   ckv_open_options options = {.struct_size = sizeof options, .directory = "127.0.0.1:7400",
//                               .backend = "cuda"};
//   ckv_stream* stream;                               // once for each stream of the engine
//   if (ckv_stream_open(requester, native, &stream) != CKV_OK) die(ckv_last_error(requester));
//
//   call.q_memory = call.out_memory = CKV_MEMORY_DEVICE;  // q, o, m and l are on the GPU
//   call.after = stream;                                  // the kernels that make q are on it
//
//   if (ckv_submit(requester, &call, NULL, &ticket) != CKV_OK) die(ckv_last_error(requester));
//   /* the engine queues more work */
//   if (ckv_wait(ticket, CKV_TIMEOUT_NONE, &done) != CKV_OK) die(ckv_last_error(requester));
//   /* the answer is complete in o, m and l: any stream may read it from here on */
//
// BACKENDS. The backend of a requester computes on this host: it rotates queries, attends own and
// locally cached rows, and merges. ckv_open_options.backend names it. A GPU's backend is the
// library libckv_cuda.so. It is searched for in the folder of libckv.so, with links resolved, then
// in the subfolder ckv of that folder. So PREFIX/lib/libckv.so and PREFIX/bin/ckvd find the same
// PREFIX/lib/ckv/libckv_cuda.so. No environment variable changes this. Both libraries must be from
// the same build.
//
// ORDER. `after` of a call is a stream of the engine. ckv touches q, own rows and the output only
// when the work that the engine has put on that stream is done. If `after` is NULL, they are ready.
// ckv puts no work on the engine's stream, and the stream never waits for ckv.
//   ckv_attend, ckv_submit     q: work on the stream when the call began. Own rows and the output:
//                              also work added until the queries were sent; for a ticket, until a
//                              poll or wait found them sent. So work on this stream must not wait
//                              for the ticket.
//   ckv_fetch                  work on the stream when the call began
//   ckv_fetch_begin            work on the stream when the call began. Later work, for example of
//                              the first layers, delays no rows
// If a call is repeated after a holder failed, it may also wait for later work. Work that takes
// longer than the call's timeout is still waited for. The call then ends with DEADLINE_EXCEEDED.
//
// RESULTS are complete once ckv_attend or ckv_fetch has returned CKV_OK. A ticket's are complete
// once ckv_poll or ckv_wait has returned CKV_OK with *done = 1; a layer's once ckv_fetch_wait_layer
// has. From then on, every stream and the host may read them, without an event. Before that, their
// contents are undefined.
//
// Selections, `visible`, and all structs are in host memory, and so are the arguments of
// ckv_partial.h and ckv_put.h.

#pragma once

// A stream that an engine owns, for use as `after`. Any number of threads may use it at once, while
// the engine puts work on the native stream. Before the headers below, which use it.
typedef struct ckv_stream ckv_stream;

#include "ckv.h"

#ifdef __cplusplus
extern "C" {
#endif

// The kind of some memory. A kind that the requester's backend does not reach is INVALID_ARGUMENT.
enum {
  CKV_MEMORY_HOST = 0,    // memory of this process
  CKV_MEMORY_PINNED = 1,  // page-locked host memory that the device reads and writes itself
  CKV_MEMORY_DEVICE = 2,  // memory of the device; requires a requester with a GPU's backend
};

// Wraps `native`: a cudaStream_t of the device, or NULL for its default stream. The native stream
// must live until ckv_stream_free. Does not wait.
//   UNIMPLEMENTED        the processor computes for this requester: it was not opened with a GPU's
//                        backend.
ckv_status ckv_stream_open(ckv_requester* requester, void* native, ckv_stream** stream);
// Frees the wrapper, not the native stream. No call that uses it may be in progress: its tickets,
// including those of fetches, are done or freed. It may be freed after its requester.
void ckv_stream_free(ckv_stream* stream);

// Returns one line for people: which backend computes, and why. For example "backend cuda:
// /usr/lib/ckv/libckv_cuda.so, kernels CUDA_SM90". Valid until the requester is closed. "" for
// NULL.
const char* ckv_backend_reason(const ckv_requester* requester);

#ifdef __cplusplus
}
#endif
