// ckv in C: attention over compressed KV cache stored on other machines. For C11 and C++.
//
//   #include <ckv/ckv.h>                                  // cc $(pkg-config --cflags --libs ckv)
//
//   ckv_open_options options = {.struct_size = sizeof options, .directory = "127.0.0.1:7400"};
//   ckv_requester* requester;
//   if (ckv_open(&options, &requester) != CKV_OK) die(ckv_last_error(NULL));
//   ckv_corpus* corpus;
//   if (ckv_resolve(requester, "gpl", CKV_TIMEOUT_DEFAULT, &corpus) != CKV_OK)
//     die(ckv_last_error(requester));
//
//   ckv_part part = {.struct_size = sizeof part, .corpus = corpus};  // all chunks
//   ckv_segment segment = {.struct_size = sizeof segment, .part = &part};
//
//   ckv_attend_call call = {.struct_size = sizeof call, .layer = 3, .row_count = rows, .q = q,
//                           .o = o, .m = m, .l = l, .segments = &segment, .segment_count = 1};
//
//   if (ckv_attend(requester, &call, NULL) != CKV_OK) die(ckv_last_error(requester));
//
//   ckv_corpus_free(corpus);
//   ckv_close(requester);
//
// This file has the common declarations. It includes the other headers: attention (ckv_attend.h),
// rows (ckv_fetch.h), chunks of a prompt (ckv_find.h), publishing (ckv_put.h), arithmetic on
// partials (ckv_partial.h) and advice (ckv_advice.h). ckv_rank.h chooses an instance for a request,
// and ckv_load.h reports loads and has the directory choose.
// ckv_device.h covers GPU memory. The library behaves as the C++ client (client/requester.h), with
// bit-identical results.
//
// WORDS. A query row is one head of one token, in the order token x heads + head. A cKV row is one
// token at one layer: d_qk values, of which the first d_v are also its value. A chunk is an
// immutable sequence of tokens with the rows of all layers; a corpus is a named list of chunks. A
// partial is the result of attention over some rows: o, m and l (ckv_partial.h). bf16 values are
// uint16_t: the upper half of a float.
//
// STRUCTS. Every struct begins with struct_size, which the caller sets to sizeof. A field that is 0
// has its default. Set the whole struct to zero first, then the fields that matter. Fields named
// `reserved` must be 0. All elements of an array of structs have the same struct_size, which is
// also their distance in bytes.
//
// VERSIONS. This is version 1.0. A minor version may add functions, constants, and fields at the
// end of structs, whose default is 0. All other changes need another major version. Programs and
// libraries of one major version work together, and struct_size determines how a struct is read:
//   below its size in 1.0     INVALID_ARGUMENT
//   below the library's size  The fields beyond struct_size are neither read nor written. They have
//                             their defaults.
//   above the library's size  Accepted if all bytes beyond the library's size are 0. Otherwise
//                             INVALID_ARGUMENT: the library does not have a field that is set.
//
// HANDLES are owned by the caller, who frees each once. Freeing NULL does nothing. A function that
// fails sets its handle to NULL.
//
// MEMORY. No function keeps a pointer after it returns, except ckv_submit and ckv_fetch_begin, as
// documented there. All memory is host memory, unless a field of the call declares device memory
// (ckv_device.h).
//
// THREADS. Any threads may use a requester, a corpus or a context at the same time. Only one thread
// at a time may use a ticket. No thread may use a handle while or after it is freed. Exceptions are
// documented with each function. Call no function in a signal handler, or in a child after fork.
//
// TIMES are nanoseconds from the start of the call. In a struct, 0 means CKV_TIMEOUT_DEFAULT. As an
// argument, 0 means 0: it expires immediately.
//
// ERRORS. Functions return a ckv_status, CKV_OK on success. The code determines what to do next,
// and ckv_last_error describes the error in words. Out parameters are written only on success,
// except handles and where documented. No C++ exception leaves a function. Every function may
// return these; others are listed with it:
//   INVALID_ARGUMENT     a required pointer is NULL, or a struct_size or a field is invalid.
//   RESOURCE_EXHAUSTED   out of memory.
//   INTERNAL             a bug in ckv.
//
// Load one libckv.so per process and no libckv_cc.so: both register ckv's messages in one protobuf.

#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The version of this header (VERSIONS).
#define CKV_API_MAJOR 1
#define CKV_API_MINOR 0

// The numbers are those of gRPC's codes.
typedef int32_t ckv_status;
enum {
  CKV_OK = 0,
  CKV_CANCELLED = 1,            // the caller cancelled the call
  CKV_UNKNOWN = 2,              //
  CKV_INVALID_ARGUMENT = 3,     // the call is wrong; nothing was sent
  CKV_DEADLINE_EXCEEDED = 4,    // a holder did not answer in time; a replica may
  CKV_NOT_FOUND = 5,            // a corpus or chunk is gone: resolve again
  CKV_ALREADY_EXISTS = 6,       //
  CKV_PERMISSION_DENIED = 7,    //
  CKV_RESOURCE_EXHAUSTED = 8,   // overloaded: retry after ckv_last_retry_after_ns
  CKV_FAILED_PRECONDITION = 9,  // geometry or version differ, or a handle is closed: do not retry
  CKV_ABORTED = 10,             //
  CKV_OUT_OF_RANGE = 11,        //
  CKV_UNIMPLEMENTED = 12,       //
  CKV_INTERNAL = 13,            // a bug, or a device that failed
  CKV_UNAVAILABLE = 14,      // a holder and all its replicas, or the directory, cannot be reached
  CKV_DATA_LOSS = 15,        // rows fail their checksum, or answers arrive damaged
  CKV_UNAUTHENTICATED = 16,  //
};

// Timeouts. The default is 10 s.
#define CKV_TIMEOUT_DEFAULT UINT64_C(10000000000)
#define CKV_TIMEOUT_NONE UINT64_MAX

// Data types of partials on the wire, and of rows.
enum {
  CKV_DTYPE_DEFAULT = 0,
  CKV_DTYPE_BF16 = 1,
  CKV_DTYPE_F32 = 2,
  CKV_DTYPE_FP8_DS_MLA = 3,  // FlashMLA's row of 656 bytes; rows only
};

// How RoPE rotates the last d_rope values: not, in pairs (2i, 2i+1), in pairs (i, i + d_rope/2).
enum { CKV_ROPE_NONE = 0, CKV_ROPE_INTERLEAVED = 1, CKV_ROPE_HALF_SPLIT = 2 };

// Data types of index keys. A key of FP8 (e4m3) or INT8 values has one float behind them, their
// scale.
enum { CKV_INDEX_NONE = 0, CKV_INDEX_BF16 = 1, CKV_INDEX_FP8 = 2, CKV_INDEX_INT8 = 3 };

typedef struct ckv_requester ckv_requester;
typedef struct ckv_corpus ckv_corpus;
typedef struct ckv_context ckv_context;  // ckv_attend.h
typedef struct ckv_choice ckv_choice;    // ckv_select.h

// Returns the library's version. A library with the header's major and at least its minor version
// supports everything in this header. Cannot fail.
void ckv_api_version(uint32_t* major, uint32_t* minor);

// Returns "OK", "INVALID_ARGUMENT" and so on; "UNKNOWN" for any other number. Static: do not free.
const char* ckv_status_name(ckv_status status);

// Returns the error text of the calling thread's last failed call. If `requester` is not NULL and
// that call used neither it nor a handle made from it, returns "". The text is valid until the
// thread's next failed call; a successful call does not change it. Never NULL.
const char* ckv_last_error(const ckv_requester* requester);
// Returns how long after that failure the overloaded holder requests a retry, in nanoseconds; 0 if
// it gave no time. `requester` selects as in ckv_last_error.
uint64_t ckv_last_retry_after_ns(const ckv_requester* requester);

// Disables the local row cache: every query is routed.
#define CKV_LOCAL_CACHE_NONE UINT64_MAX

typedef struct ckv_open_options {
  size_t struct_size;
  // host:port of the directory, or of several: "host:port,host:port"; required.
  const char* directory;
  // The tenant whose corpora are read in addition to the shared ones. NULL reads only shared ones.
  // A name, not a credential.
  const char* tenant;
  const char* name;  // this requester's name in the logs of holders; by default "ckv-PID"
  // host:port of a ckvd with the roles holder and requester on this host, used as the host's shared
  // cache. Rows that are fetched, or prefetched under the policies cache and auto, are copied there
  // once for all requesters that name it. They are read from its memory. While it fails, rows are
  // read from their holders. If NULL, each requester fetches for itself.
  const char* requester;
  // The fabrics to use, "shm,tcp,verbs" or some of them, in order of preference if a probe measures
  // no difference. By default "shm,tcp".
  const char* fabrics;
  const char* verbs_device;  // the RDMA device for verbs; by default the only one
  // The backend that computes in this process. "cpu", the default, is the processor. "cuda" is a
  // GPU, whose library must be installed (ckv_device.h). "auto" is a GPU if a library is usable and
  // kernel_target names no target, and the processor otherwise.
  const char* backend;
  // The kernel target, for example "AVX3", if the fleet is configured with one. Applies to the
  // whole process, and stays after ckv_close. By default the process keeps its target: at first
  // the fastest on this processor.
  const char* kernel_target;
  // Capacity of the local row cache, for rows that contexts prefetch. By default 1 GiB;
  // CKV_LOCAL_CACHE_NONE disables it.
  uint64_t local_cache_bytes;
  uint32_t call_count_max;      // concurrent calls, at most 4096; by default 16
  uint32_t call_threads;        // threads that attend cached and own rows of a call; by default 1
  uint64_t connect_timeout_ns;  // how long a new session may take; by default 3 s
  // The model that this program serves, as a fingerprint or any text of at most 256 bytes. While
  // the requester is open, `ckvctl status` shows the model with the requester's name, host, process
  // id and rank among the processes of one engine. If empty, the requester is shown without a
  // model. If NULL, the requester is not shown.
  const char* announce;
  uint32_t announce_rank;        // from 0
  uint32_t announce_rank_count;  // 0 if there are no ranks
} ckv_open_options;

// Makes a requester. Does not wait for the network: an unreachable directory is reported by the
// first call. The requester watches the directory on its own thread, so that corpora do not stay
// stale. One requester per process is enough. Use ckv_open, which passes the header's version.
//
// The library writes warnings and errors to stderr and installs no signal handlers. On a processor
// with AMX it requests the tile registers from Linux, at the latest in this call. From then on, a
// program that calls sigaltstack must give each stack getauxval(AT_MINSIGSTKSZ) bytes in addition
// to its handler's own.
//   INVALID_ARGUMENT     also: no directory, an unknown fabric, kernel target or backend, a text or
//                        count beyond its limit, or a malformed tenant or `requester`.
//   FAILED_PRECONDITION  the library has another major version. Or another requester of the process
//                        is open, and kernels use a target other than `kernel_target`. Or backend
//                        "cuda": the library is of another build, does not load, or finds no
//                        device. Or the device cannot access host memory at all.
//   NOT_FOUND            backend "cuda": there is no library; the text lists the paths searched. Or
//                        verbs is requested, and there is no such device.
//   UNIMPLEMENTED, ...   verbs is requested, and this library or host does not support it.
ckv_status ckv_open_version(uint32_t api_major, uint32_t api_minor, const ckv_open_options* options,
                            ckv_requester** requester);

static inline ckv_status ckv_open(const ckv_open_options* options, ckv_requester** requester) {
  return ckv_open_version(CKV_API_MAJOR, CKV_API_MINOR, options, requester);
}

// Closes lanes and sessions and frees the requester. No call on it may be in progress. Corpora and
// contexts may be freed later; any other use of a context is then an error.
//   FAILED_PRECONDITION  tickets, fetches or puts are not freed yet. The requester stays open.
ckv_status ckv_close(ckv_requester* requester);

// Looks up a corpus by name and returns an immutable snapshot of the directory's entry.
//   NOT_FOUND            there is no such corpus, or it belongs to another tenant.
//   UNAVAILABLE          the directory could not be reached in time.
//   DEADLINE_EXCEEDED    the directory did not reply in time.
ckv_status ckv_resolve(ckv_requester* requester, const char* name, uint64_t timeout_ns,
                       ckv_corpus** corpus);

// Frees the snapshot. Contexts, tickets and fetches that use the corpus remain valid.
void ckv_corpus_free(ckv_corpus* corpus);

// Facts of a corpus. The library writes all fields. The corpus owns the texts; they are valid until
// it is freed.
typedef struct ckv_corpus_facts {
  size_t struct_size;
  const char* name;
  const char* model;     // "deepseek-ai/DeepSeek-V2-Lite"
  const char* revision;  // the weights' revision
  uint64_t version;      // increases with each publication
  uint64_t token_count;  // all chunks together
  uint32_t chunk_count;
  uint32_t layers;
  uint32_t d_qk;       // values of a cKV row and of a query row
  uint32_t d_v;        // values of a row of o
  uint32_t d_rope;     // the last values of a row, which are rotated to its position
  uint32_t row_dtype;  // CKV_DTYPE_BF16 or CKV_DTYPE_FP8_DS_MLA
  uint32_t row_bytes;  // one cKV row: 1152 for DeepSeek in bf16
  uint32_t rope_style;
  double rope_theta;
  // YaRN. If the model does not use it, all of these are 0.
  double yarn_factor, yarn_original_max_position, yarn_beta_fast, yarn_beta_slow;
  double yarn_mscale, yarn_mscale_all_dim;
  double softmax_scale;  // a float; holders apply it, so pass queries without it
  // The index keys of sparse attention, one a token and layer. If the model has none, all of these
  // are 0. The score of key k for a token with vectors q_h and weights w_h is
  //   index_scale x sum over the heads of w_h x max(0, q_h . k)
  double index_scale;         // a float
  uint32_t index_dim;         // values of a key, and of each query vector
  uint32_t index_heads;       // query vectors of a token
  uint32_t index_dtype;       // CKV_INDEX_BF16, ...
  uint32_t index_d_rope;      // the first values of a key, which are rotated to its position
  uint32_t index_rope_style;  // CKV_ROPE_NONE, ...
  uint32_t index_key_bytes;   // one key: 132 for DeepSeek-V3.2; only read from the library
} ckv_corpus_facts;

ckv_status ckv_corpus_describe(const ckv_corpus* corpus, ckv_corpus_facts* facts);

// Describes the chunks [chunk_begin, chunk_end) of a corpus. Each array has one element per chunk
// and may be NULL.
//   ids           uint8_t [n][32]: SHA-256 over the model, and all tokens and extra keys up to
//                 the end of the chunk
//   token_counts  uint32_t [n]
//   positions     uint64_t [n]: the canonical position of the chunk's first token
//   INVALID_ARGUMENT     also: the range is not within the corpus.
ckv_status ckv_corpus_chunks(const ckv_corpus* corpus, uint32_t chunk_begin, uint32_t chunk_end,
                             uint8_t* ids, uint32_t* token_counts, uint64_t* positions);

// A picture, sound or adapter: input that affects the rows of tokens, but not their token ids. All
// pictures have the same placeholder ids. The digest is part of the chunk's id and of look-ups, so
// no prompt matches another picture's rows. ckv_put_chunk and ckv_find_call take arrays of at most
// 1024 keys, in any order.
typedef struct ckv_extra_key {
  size_t struct_size;
  // The first affected token, counted from the first token of the chunk or the prompt. Negative if
  // the picture began in an earlier chunk.
  int64_t begin;
  const void* digest;     // [digest_bytes], chosen by the engine; copied
  uint32_t digest_bytes;  // 1 to 64
  // The number of affected tokens, including those outside the chunk or the prompt. 0 means every
  // token of the sequence, as for an adapter; `begin` must then be 0.
  uint32_t token_count;
} ckv_extra_key;

#ifdef __cplusplus
}
#endif

#include "ckv_advice.h"
#include "ckv_attend.h"
#include "ckv_device.h"
#include "ckv_fetch.h"
#include "ckv_find.h"
#include "ckv_load.h"
#include "ckv_partial.h"
#include "ckv_put.h"
#include "ckv_rank.h"
#include "ckv_select.h"
