// A program that has its queries, own rows, answers and fetched rows on a GPU, as far as ckv can
// detect: the libckv_cuda.so next to its libckv.so is a stand-in. c_device_e2e.py puts them there.
//
//   c_device open DIRECTORY BACKEND TARGET     opens a requester; "" is NULL. Prints the code, then
//                                              what was chosen, or the error
//   c_device attend DIRECTORY CORPUS LIBRARY   compares with answers and rows in host memory

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/bindings/c/ckv.h"
#include "tests/client/bindings/c/scenario.h"

#define TIMEOUT UINT64_C(30000000000)

// tests/support/stand_in/cuda_stand_in.h
static void* (*Allocate)(uint32_t kind, uint64_t bytes);
static void (*Free)(void* memory);
static void (*Copy)(void* to, const void* from, uint64_t bytes);
static void* (*NewStream)(void);
static void (*CopyOn)(void* native, void* to, const void* from, uint64_t bytes);
static int (*IsReady)(void* native);
static void (*FreeStream)(void* native);
static uint64_t (*AttendCount)(void);

static void Require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "c_device: %s: %s\n", what, ckv_last_error(NULL));
  exit(1);
}

static void* Symbol(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  Require(symbol != NULL, name);
  return symbol;
}

// The library that ckv has loaded already.
static void FindStandIn(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  Require(library != NULL, "ckv has loaded the library");
  *(void**)&Allocate = Symbol(library, "stand_in_allocate");
  *(void**)&Free = Symbol(library, "stand_in_free");
  *(void**)&Copy = Symbol(library, "stand_in_copy");
  *(void**)&NewStream = Symbol(library, "stand_in_stream_new");
  *(void**)&CopyOn = Symbol(library, "stand_in_stream_copy");
  *(void**)&IsReady = Symbol(library, "stand_in_stream_ready");
  *(void**)&FreeStream = Symbol(library, "stand_in_stream_free");
  *(void**)&AttendCount = Symbol(library, "stand_in_attend_count");
}

static const char* OrNull(const char* text) { return *text == '\0' ? NULL : text; }

static int Open(const char* directory, const char* backend, const char* target) {
  const ckv_open_options options = {.struct_size = sizeof options,
                                    .directory = directory,
                                    .backend = OrNull(backend),
                                    .kernel_target = OrNull(target)};
  ckv_requester* requester = NULL;
  const ckv_status status = ckv_open(&options, &requester);
  printf("%s %s\n", ckv_status_name(status),
         status == CKV_OK ? ckv_backend_reason(requester) : ckv_last_error(NULL));
  return ckv_close(requester) == CKV_OK ? 0 : 1;
}

// A requester, and the corpus' facts.
typedef struct side {
  ckv_requester* requester;
  ckv_corpus* corpus;
  ckv_context* context;
  ckv_corpus_facts facts;
} side;

static side OpenSide(const char* directory, const char* corpus, const char* backend) {
  const ckv_open_options options = {
      .struct_size = sizeof options, .directory = directory, .backend = backend};
  side made = {.facts = {.struct_size = sizeof made.facts}};
  Require(ckv_open(&options, &made.requester) == CKV_OK, "open");
  Require(ckv_resolve(made.requester, corpus, TIMEOUT, &made.corpus) == CKV_OK, "resolve");
  Require(ckv_corpus_describe(made.corpus, &made.facts) == CKV_OK, "describe");
  const ckv_part part = {.struct_size = sizeof part, .corpus = made.corpus, .offset = kShift};
  const ckv_context_spec spec = {
      .struct_size = sizeof spec, .parts = &part, .part_count = 1, .policy = CKV_POLICY_ROUTE};
  Require(ckv_context_open(made.requester, &spec, &made.context) == CKV_OK, "open a context");
  return made;
}

static void CloseSide(side* one) {
  ckv_context_close(one->context);
  ckv_corpus_free(one->corpus);
  Require(ckv_close(one->requester) == CKV_OK, "close");
}

// Memory of a call, in host memory or all of it on the device.
typedef struct memory {
  uint32_t kind;
  uint16_t *q, *own;
  float* answer;  // o, m, l
} memory;

static size_t AnswerFloats(const side* one) { return (size_t)kRows * (one->facts.d_v + 2); }

// Attends one segment with own rows, at once or by a ticket.
static void Attend(const side* one, const memory* at, const ckv_stream* after, int by_ticket) {
  const ckv_own_rows own = {
      .struct_size = sizeof own, .rows = at->own, .row_count = kOwnTokens, .memory = at->kind};
  const ckv_segment segment = {
      .struct_size = sizeof segment, .context = one->context, .own = &own, .own_count = 1};
  float* const m = at->answer + (size_t)kRows * one->facts.d_v;
  const ckv_attend_call call = {.struct_size = sizeof call,
                                .layer = 1,
                                .row_count = kRows,
                                .q = at->q,
                                .o = at->answer,
                                .m = m,
                                .l = m + kRows,
                                .segments = &segment,
                                .segment_count = 1,
                                .wire = CKV_DTYPE_F32,
                                .timeout_ns = TIMEOUT,
                                .q_memory = at->kind,
                                .out_memory = at->kind,
                                .after = after};
  if (!by_ticket) {
    Require(ckv_attend(one->requester, &call, NULL) == CKV_OK, "attend");
    return;
  }
  ckv_ticket* ticket = NULL;
  int done = 0;
  Require(ckv_submit(one->requester, &call, NULL, &ticket) == CKV_OK, "submit");
  Require(ckv_wait(ticket, CKV_TIMEOUT_NONE, &done) == CKV_OK && done == 1, "wait");
  ckv_ticket_free(ticket);
}

static void CompareAnswers(const side* here, const side* there) {
  const size_t q_bytes = (size_t)kRows * here->facts.d_qk * 2;
  const size_t own_bytes = (size_t)kOwnTokens * here->facts.row_bytes;
  const size_t answer_bytes = AnswerFloats(here) * sizeof(float);
  const memory host = {CKV_MEMORY_HOST, malloc(q_bytes), malloc(own_bytes), malloc(answer_bytes)};
  const memory device = {CKV_MEMORY_DEVICE, Allocate(CKV_MEMORY_DEVICE, q_bytes),
                         Allocate(CKV_MEMORY_DEVICE, own_bytes),
                         Allocate(CKV_MEMORY_DEVICE, answer_bytes)};
  float* const got = malloc(answer_bytes);
  FillBf16(host.q, q_bytes / 2, 1);
  FillBf16(host.own, own_bytes / 2, 2);
  Attend(here, &host, NULL, 0);
  void* const native = NewStream();
  ckv_stream* stream = NULL;
  Require(ckv_stream_open(there->requester, native, &stream) == CKV_OK, "open a stream");
  for (int by_ticket = 0; by_ticket < 2; ++by_ticket) {
    const uint64_t attends = AttendCount();
    memset(got, 0, answer_bytes);
    Copy(device.q, got, q_bytes < answer_bytes ? q_bytes : answer_bytes);
    CopyOn(native, device.q, host.q, q_bytes);
    CopyOn(native, device.own, host.own, own_bytes);
    Require(!IsReady(native), "the engine's stream is busy");
    Attend(there, &device, stream, by_ticket);
    Copy(got, device.answer, answer_bytes);
    Require(memcmp(got, host.answer, answer_bytes) == 0, "the bits of host memory");
    Require(AttendCount() > attends, "own rows are attended on the device");
  }
  ckv_stream_free(stream);
  FreeStream(native);
  Free(device.q), Free(device.own), Free(device.answer);
  free(host.q), free(host.own), free(host.answer), free(got);
}

static void CompareRows(const side* here, const side* there) {
  const size_t bytes = (size_t)here->facts.layers * here->facts.token_count * here->facts.row_bytes;
  void *const want = malloc(bytes), *const got = malloc(bytes);
  void* const device = Allocate(CKV_MEMORY_DEVICE, bytes);
  ckv_fetch_call call = {.struct_size = sizeof call,
                         .corpus = here->corpus,
                         .rows = want,
                         .rows_bytes = bytes,
                         .timeout_ns = TIMEOUT,
                         .rotate = 1,
                         .position = kShift};
  Require(ckv_fetch(here->requester, &call, NULL) == CKV_OK, "fetch");
  call.corpus = there->corpus;
  call.rows = device;
  call.rows_memory = CKV_MEMORY_DEVICE;
  Require(ckv_fetch(there->requester, &call, NULL) == CKV_OK, "fetch to the device");
  Copy(got, device, bytes);
  Require(memcmp(got, want, bytes) == 0, "rows on the device");
  Require(ckv_fetch(here->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "a corpus and a kind");
  Require(strstr(ckv_last_error(NULL), "open it with backend \"cuda\"") != NULL, "what to do");
  Free(device);
  free(want), free(got);
}

int main(int argc, char** argv) {
  if (argc == 5 && strcmp(argv[1], "open") == 0) return Open(argv[2], argv[3], argv[4]);
  if (argc != 5 || strcmp(argv[1], "attend") != 0) return 2;
  side here = OpenSide(argv[2], argv[3], NULL), there = OpenSide(argv[2], argv[3], "cuda");
  FindStandIn(argv[4]);
  CompareAnswers(&here, &there);
  CompareRows(&here, &there);
  CloseSide(&there);
  CloseSide(&here);
  printf("the answers and rows of host memory\n");
  return 0;
}
