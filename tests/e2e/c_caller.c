// An engine over the C interface that sends the same query over and over until its stdin ends, as
// attend_caller does over gRPC.
//
//   c_caller DIRECTORY CORPUS [TIMEOUT_MS [POLICY]]
//
// POLICY is route (the default), cache or auto. With another one than route it opens all anew after
// kLifeCalls calls, so that rows are fetched again, and compares answers up to kTolerance: rows
// that are attended here are merged in another order. With route it compares bits.
//
// Prints "answered" after the first answer, and attend_caller's line of JSON at the end.

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/bindings/c/ckv.h"
#include "tests/bench/field/call_times.h"

enum { kRows = 2, kWidthMax = 4096, kLifeCalls = 200, kPauseMs = 20 };
static const float kTolerance = 1e-3f;

static int StdinEnds(int within_ms) {
  struct pollfd ended = {0, POLLIN, 0};
  return poll(&ended, 1, within_ms) != 0;
}

// Texts of errors name holders and addresses, and need no other escape.
static void PrintText(const char* text) {
  putchar('"');
  for (; *text != 0; ++text) {
    if (*text == '"' || *text == '\\') putchar('\\');
    putchar((unsigned char)*text < ' ' ? ' ' : *text);
  }
  putchar('"');
}

typedef struct caller {
  const char *directory, *name;
  uint64_t timeout_ns;
  uint32_t policy;
  // Null while not open.
  ckv_requester* requester;
  ckv_corpus* corpus;
  ckv_context* context;
  ckv_corpus_facts facts;  // of the last corpus
  float *answer, *first_answer;
  unsigned long long queries, failed, changed;
  char first_error[4096];
} caller;

static void Close(caller* one) {
  if (one->context != NULL) ckv_context_close(one->context);
  if (one->corpus != NULL) ckv_corpus_free(one->corpus);
  if (one->requester != NULL && ckv_close(one->requester) != CKV_OK) {
    fprintf(stderr, "c_caller: close: %s\n", ckv_last_error(NULL));
    exit(1);
  }
  one->context = NULL;
  one->corpus = NULL;
  one->requester = NULL;
}

static ckv_status Open(caller* one) {
  const ckv_open_options options = {
      .struct_size = sizeof options,
      .directory = one->directory,
      .local_cache_bytes = one->policy == CKV_POLICY_ROUTE ? CKV_LOCAL_CACHE_NONE : 0};
  ckv_status status = ckv_open(&options, &one->requester);
  if (status != CKV_OK) {
    one->requester = NULL;
    return status;
  }
  status = ckv_resolve(one->requester, one->name, one->timeout_ns, &one->corpus);
  if (status != CKV_OK) {
    one->corpus = NULL;
    return status;
  }
  one->facts = (ckv_corpus_facts){.struct_size = sizeof one->facts};
  status = ckv_corpus_describe(one->corpus, &one->facts);
  if (status != CKV_OK) return status;
  if (one->facts.d_qk > kWidthMax) {
    fprintf(stderr, "c_caller: the corpus is too wide\n");
    exit(1);
  }
  const ckv_part part = {.struct_size = sizeof part, .corpus = one->corpus};
  const ckv_context_spec spec = {.struct_size = sizeof spec,
                                 .parts = &part,
                                 .part_count = 1,
                                 .policy = one->policy,
                                 .timeout_ns = one->timeout_ns};
  status = ckv_context_open(one->requester, &spec, &one->context);
  if (status != CKV_OK) one->context = NULL;
  return status;
}

static size_t AnswerFloats(const caller* one) { return (size_t)kRows * (one->facts.d_v + 2); }

static ckv_status Attend(caller* one, const uint16_t* q) {
  if (one->answer == NULL) {
    one->answer = (float*)calloc(AnswerFloats(one), sizeof(float));
    one->first_answer = (float*)calloc(AnswerFloats(one), sizeof(float));
  }
  const uint32_t d_v = one->facts.d_v;
  const ckv_segment segment = {.struct_size = sizeof segment, .context = one->context};
  const ckv_attend_call call = {.struct_size = sizeof call,
                                .layer = 1,
                                .row_count = kRows,
                                .q = q,
                                .wire = CKV_DTYPE_F32,
                                .o = one->answer,
                                .m = one->answer + kRows * d_v,
                                .l = one->answer + kRows * (d_v + 1),
                                .segments = &segment,
                                .segment_count = 1,
                                .timeout_ns = one->timeout_ns};
  return ckv_attend(one->requester, &call, NULL);
}

static int IsChanged(const caller* one) {
  if (one->policy == CKV_POLICY_ROUTE)
    return memcmp(one->first_answer, one->answer, sizeof(float) * AnswerFloats(one)) != 0;
  for (size_t i = 0; i < AnswerFloats(one); ++i) {
    const float first = one->first_answer[i];
    if (!(fabsf(one->answer[i] - first) <= kTolerance * (1 + fabsf(first)))) return 1;
  }
  return 0;
}

// Opens what is not open, and makes one call.
static ckv_status Call(caller* one, const uint16_t* q, ckv_call_times* times) {
  ckv_status status = one->context == NULL ? Open(one) : CKV_OK;
  if (status == CKV_OK) {
    const double begin = ckv_call_times_now();
    status = Attend(one, q);
    ckv_call_times_add(times, begin);
  }
  if (status != CKV_OK && one->failed++ == 0)
    snprintf(one->first_error, sizeof one->first_error, "%s: %s", ckv_status_name(status),
             ckv_last_error(one->requester));
  if (one->context == NULL && one->failed > one->queries) {
    fprintf(stderr, "c_caller: %s\n", one->first_error);  // no answer at all
    exit(1);
  }
  if (one->context == NULL) Close(one);
  return status;
}

static void Run(caller* one) {
  static uint16_t q[kRows * kWidthMax];
  for (uint32_t i = 0; i < kRows * kWidthMax; ++i) q[i] = 0x3f80;  // 1 in bf16
  ckv_call_times times;
  ckv_call_times_begin(&times);
  for (; !StdinEnds(ckv_call_times_rest_ms(&times)); ++one->queries) {
    if (Call(one, q, &times) != CKV_OK) {
      if (one->context == NULL) StdinEnds(kPauseMs);  // it may be refused at once
      continue;
    }
    if (one->queries == one->failed) {
      memcpy(one->first_answer, one->answer, sizeof(float) * AnswerFloats(one));
      puts("answered");
      fflush(stdout);
    }
    one->changed += IsChanged(one);
    if (one->policy != CKV_POLICY_ROUTE && one->queries % kLifeCalls == kLifeCalls - 1) Close(one);
  }
  Close(one);
  printf("{\"queries\": %llu, \"failed\": %llu, \"changed\": %llu, \"first_error\": ", one->queries,
         one->failed, one->changed);
  PrintText(one->first_error);
  printf(", ");
  ckv_call_times_print(&times);
  printf("}\n");
  free(one->answer);
  free(one->first_answer);
}

static int ParsePolicy(const char* text, uint32_t* policy) {
  static const char* const names[] = {
      [CKV_POLICY_AUTO] = "auto", [CKV_POLICY_ROUTE] = "route", [CKV_POLICY_CACHE] = "cache"};
  for (uint32_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (strcmp(text, names[i]) != 0) continue;
    *policy = i;
    return 1;
  }
  return 0;
}

int main(int argc, char** argv) {
  caller one = {.timeout_ns = CKV_TIMEOUT_DEFAULT, .policy = CKV_POLICY_ROUTE};
  if (argc < 3 || argc > 5 || (argc == 5 && !ParsePolicy(argv[4], &one.policy))) {
    fprintf(stderr, "usage: c_caller DIRECTORY CORPUS [TIMEOUT_MS [route|cache|auto]]\n");
    return 2;
  }
  one.directory = argv[1];
  one.name = argv[2];
  if (argc > 3) one.timeout_ns = UINT64_C(1000000) * strtoull(argv[3], NULL, 10);
  Run(&one);
  return 0;
}
