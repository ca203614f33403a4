// ckv in C: attention over compressed KV cache that lives on other machines. C11, and C++.
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
// This file has what all of them need. It includes the others: attention (ckv_attend.h), rows
// (ckv_fetch.h), chunks of a prompt (ckv_find.h), publishing (ckv_put.h), arithmetic on partials
// (ckv_partial.h) and advice (ckv_advice.h). ckv_device.h tells of memory of a GPU. The library
// does what the C++ client does (client/requester.h), and answers have its bits.
//
// WORDS. A query row is one head of one token, in the order token x heads + head. A cKV row is one
// token at one layer: d_qk values, of which the first d_v are also its value. A chunk is an
// immutable run of tokens with all their layers; a corpus is a list of chunks with a name. A
// partial is the answer of attention over some rows: o, m and l (ckv_partial.h). bf16 values are
// uint16_t: the upper half of a float.
//
// STRUCTS. Every struct begins with struct_size, which the caller sets to sizeof. A field that is 0
// has its default. Set the whole struct to zero first, then the fields that matter. A program and a
// library of different versions understand each other. Fields beyond the caller's size have their
// defaults. A struct larger than the library knows is taken if the bytes it does not know are zero,
// and is INVALID_ARGUMENT otherwise. Fields that are named `reserved` are 0. The elements of an
// array of structs have one struct_size, and lie that far apart.
//
// HANDLES belong to the caller, who frees each once. Freeing NULL does nothing. A function that
// fails sets its handle to NULL.
//
// MEMORY. No pointer that is passed is kept once the call has returned, except by ckv_submit and
// ckv_fetch_begin, which say so. All memory is the host's, unless a field of the call says that it
// is a device's (ckv_device.h).
//
// THREADS. A requester and a corpus may be used by any threads at once, and so may a context. A
// ticket is used by one thread at a time. Nothing may use a handle while or after it is freed. Each
// function says if it differs. No function may be called in a signal handler, or in a child after
// fork.
//
// TIMES are nanoseconds from the call on. In a struct, 0 is CKV_TIMEOUT_DEFAULT. An argument is
// taken at its word, so 0 has passed at once.
//
// ERRORS. Functions return a ckv_status, CKV_OK if all went well. The code tells what to do next,
// and ckv_last_error says in words what went wrong. Out parameters are written only on success,
// except handles and what says so. No C++ exception leaves a function. Every function may return
// these; others are listed with it:
//   INVALID_ARGUMENT     a pointer that is needed is NULL, a struct_size or a field is not valid.
//   RESOURCE_EXHAUSTED   there is no memory.
//   INTERNAL             a bug of ckv.
//
// A process has one libckv.so and no libckv_cc.so: both register ckv's messages in one protobuf.

#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The version of this header. Another major version is another ABI. A minor version only adds.
#define CKV_API_MAJOR 1
#define CKV_API_MINOR 3

// The numbers are those of gRPC's codes.
typedef int32_t ckv_status;
enum {
  CKV_OK = 0,
  CKV_CANCELLED = 1,            // the caller gave the call up
  CKV_UNKNOWN = 2,              //
  CKV_INVALID_ARGUMENT = 3,     // the call is wrong; nothing was sent
  CKV_DEADLINE_EXCEEDED = 4,    // a holder did not answer in time; a replica may
  CKV_NOT_FOUND = 5,            // a corpus or chunk is gone: resolve again
  CKV_ALREADY_EXISTS = 6,       //
  CKV_PERMISSION_DENIED = 7,    //
  CKV_RESOURCE_EXHAUSTED = 8,   // overloaded: come back after ckv_last_retry_after_ns
  CKV_FAILED_PRECONDITION = 9,  // geometry or version differ, or a handle is closed: do not retry
  CKV_ABORTED = 10,             //
  CKV_OUT_OF_RANGE = 11,        //
  CKV_UNIMPLEMENTED = 12,       //
  CKV_INTERNAL = 13,            // a bug, or a device that failed
  CKV_UNAVAILABLE = 14,      // a holder and all its replicas, or the directory, cannot be reached
  CKV_DATA_LOSS = 15,        // rows do not match their checksum
  CKV_UNAUTHENTICATED = 16,  //
};

// Timeouts. The default is 10 s.
#define CKV_TIMEOUT_DEFAULT UINT64_C(10000000000)
#define CKV_TIMEOUT_NONE UINT64_MAX

// Types of values: of partials on the wire, and of rows.
enum {
  CKV_DTYPE_DEFAULT = 0,
  CKV_DTYPE_BF16 = 1,
  CKV_DTYPE_F32 = 2,
  CKV_DTYPE_FP8_DS_MLA = 3,  // FlashMLA's row of 656 bytes; of rows only
};

// How the last d_rope values of a row are rotated: not, in pairs (2i, 2i+1), (i, i + d_rope/2).
enum { CKV_ROPE_NONE = 0, CKV_ROPE_INTERLEAVED = 1, CKV_ROPE_HALF_SPLIT = 2 };

typedef struct ckv_requester ckv_requester;
typedef struct ckv_corpus ckv_corpus;

// Returns the version of the library: at least the header's minor, of the same major, if
// ckv_open succeeds with everything that the header has. Cannot fail.
void ckv_api_version(uint32_t* major, uint32_t* minor);

// Returns "OK", "INVALID_ARGUMENT" and so on; "UNKNOWN" for any other number. Never freed.
const char* ckv_status_name(ckv_status status);

// Returns the text of the last call of the calling thread that failed. If `requester` is not NULL,
// only if the call was one of this requester, or of a handle that came from it; else "". It stays
// valid until the thread's next call that fails. A call that succeeds does not change it. Never
// NULL.
const char* ckv_last_error(const ckv_requester* requester);
// Returns when an overloaded holder asked that call to come back, in nanoseconds from then; 0 if it
// did not say.
uint64_t ckv_last_retry_after_ns(const ckv_requester* requester);

// No room for near rows at all: every query is routed.
#define CKV_NEAR_NONE UINT64_MAX

typedef struct ckv_open_options {
  size_t struct_size;
  const char* directory;  // host:port of the directory; needed
  // The tenant whose corpora are read, beside the shared ones; NULL for those alone. A name, not a
  // credential.
  const char* tenant;
  const char* name;  // this requester's name in the logs of holders; by default "ckv-PID"
  // The fabrics to use, "shm,tcp,verbs" or some of them, in the order to prefer if a probe finds no
  // difference. By default "shm,tcp".
  const char* fabrics;
  const char* verbs_device;  // the RDMA device of verbs; by default the only one
  // The kernel target of the fleet, "AVX3" say, if it was given one. It is the whole process'.
  // By default the fastest here.
  const char* kernel_target;
  // Room for rows that contexts pull here. By default 1 GiB; none with CKV_NEAR_NONE.
  uint64_t near_bytes;
  uint32_t call_count_max;      // calls in progress at once, at most 4096; by default 16
  uint32_t call_threads;        // threads that attend near and own rows of one call; by default 1
  uint64_t connect_timeout_ns;  // how long a new session may take; by default 3 s
  // The backend that computes here. "cpu" is the processor, and the default. "cuda" is a GPU, whose
  // library must be there (ckv_device.h). "auto" is a GPU if a library can be used and
  // kernel_target names no target, and the processor otherwise. Since 1.2.
  const char* backend;
  // The model that this program serves, as a fingerprint or any text of at most 256 bytes.
  // `ckvctl status` then shows it while the requester is open, with its name, host and process, and
  // with its rank among the processes of one engine. With an empty text it is shown without a
  // model. If NULL, it is not shown. Since 1.3.
  const char* announce;
  uint32_t announce_rank;        // from 0
  uint32_t announce_rank_count;  // 0 if there are no ranks
  // host:port of a ckvd of the roles holder and requester on this host: a cache of the host. Rows
  // that are fetched, or pulled under the policies near and auto, are copied there once for all
  // requesters that name it. They are read from its memory. While it fails, rows come from their
  // holders. If NULL, each requester fetches for itself. Since 1.3.
  const char* requester;
} ckv_open_options;

// Makes a requester. Does not wait for the network: a directory that is not there shows in the
// first call. It watches the directory on a thread of its own, so that corpora do not stay stale.
// One a process is enough. Use ckv_open, which passes the header's version. The library writes
// warnings and errors to stderr. It installs no signal handlers. On a processor with AMX it asks
// Linux for the tile registers, in here at the latest. A program that calls sigaltstack then gives
// each stack getauxval(AT_MINSIGSTKSZ) bytes beside its handler's own.
//   INVALID_ARGUMENT     also: no directory, an unknown fabric, kernel target or backend, a count
//                        beyond its limit.
//   FAILED_PRECONDITION  the library has another major version. Or another requester of the process
//                        is open, and kernels use another target than `kernel_target`. Or backend
//                        "cuda": the library is of another build, does not load, or finds no
//                        device. Or the device reaches no host memory at all.
//   NOT_FOUND            backend "cuda": there is no library; the text names the places. Or verbs
//                        is asked for, and there is no such device.
//   UNIMPLEMENTED, ...   verbs is asked for, and this library or host has none.
ckv_status ckv_open_version(uint32_t api_major, uint32_t api_minor, const ckv_open_options* options,
                            ckv_requester** requester);

static inline ckv_status ckv_open(const ckv_open_options* options, ckv_requester** requester) {
  return ckv_open_version(CKV_API_MAJOR, CKV_API_MINOR, options, requester);
}

// Closes lanes and sessions and frees the requester. No call of it may be in progress. Corpora and
// contexts may be freed later; all other use of a context then is wrong.
//   FAILED_PRECONDITION  tickets, fetches or puts are not freed yet. Nothing was done.
ckv_status ckv_close(ckv_requester* requester);

// Looks a corpus up by its name, and keeps an immutable snapshot of what the directory knows.
//   NOT_FOUND            there is no such corpus, or it is another tenant's.
//   UNAVAILABLE          the directory was not reached in time.
//   DEADLINE_EXCEEDED    it did not answer in time.
ckv_status ckv_resolve(ckv_requester* requester, const char* name, uint64_t timeout_ns,
                       ckv_corpus** corpus);

// Frees the snapshot. Contexts, tickets and fetches that use the corpus go on.
void ckv_corpus_free(ckv_corpus* corpus);

// Facts of a corpus. The library writes all of it. Texts belong to the corpus, and stay valid until
// it is freed.
typedef struct ckv_corpus_facts {
  size_t struct_size;
  const char* name;
  const char* model;     // "deepseek-ai/DeepSeek-V2-Lite"
  const char* revision;  // the weights' revision
  uint64_t version;      // rises with each publication
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
  // YaRN. If the model has none, yarn_factor is 0 and so are the rest.
  double yarn_factor, yarn_original_max_position, yarn_beta_fast, yarn_beta_slow;
  double yarn_mscale, yarn_mscale_all_dim;
  double softmax_scale;  // a float; holders apply it, so queries come without it
} ckv_corpus_facts;

ckv_status ckv_corpus_describe(const ckv_corpus* corpus, ckv_corpus_facts* facts);

// Describes the chunks [chunk_begin, chunk_end) of a corpus. Each array has one element a chunk,
// and may be NULL.
//   ids           uint8_t [n][32]: SHA-256 over the model, and all tokens and extra keys up to
//                 the end of the chunk
//   token_counts  uint32_t [n]
//   positions     uint64_t [n]: the canonical position of the chunk's first token
//   INVALID_ARGUMENT     also: the range is not within the corpus.
ckv_status ckv_corpus_chunks(const ckv_corpus* corpus, uint32_t chunk_begin, uint32_t chunk_end,
                             uint8_t* ids, uint32_t* token_counts, uint64_t* positions);

// A picture, a sound or an adapter: it affects the rows of tokens, but not their token ids. All
// pictures have the same placeholder ids. The digest is part of the chunk's id and of look-ups, so
// no prompt finds another picture's rows. ckv_put_chunk and ckv_find_call take arrays of at most
// 1024 keys, in any order.
typedef struct ckv_extra_key {
  size_t struct_size;
  // The first token that it affects, counted from the first one of the chunk or the prompt. It is
  // negative if the picture began in an earlier chunk.
  int64_t begin;
  const void* digest;     // [digest_bytes], chosen by the engine; copied
  uint32_t digest_bytes;  // 1 to 64
  // How many tokens it affects, including those outside the chunk or the prompt. 0 means every
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
#include "ckv_partial.h"
#include "ckv_put.h"
