// An engine over the C interface that sends the same query over and over until its stdin ends, as
// attend_caller does over gRPC.
//
//   c_caller DIRECTORY CORPUS [TIMEOUT_MS]
//
// Prints "answered" after the first answer, and attend_caller's line of JSON at the end.

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/bindings/c/ckv.h"
#include "tests/bench/field/call_times.h"

enum { kRows = 2, kWidthMax = 4096 };

static void Require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "c_caller: %s: %s\n", what, ckv_last_error(NULL));
  exit(1);
}

static int StdinEnded(void) {
  struct pollfd ended = {0, POLLIN, 0};
  return poll(&ended, 1, 0) != 0;
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

static void PrintCounts(unsigned long long queries, unsigned long long failed,
                        unsigned long long changed, const char* first_error) {
  printf("{\"queries\": %llu, \"failed\": %llu, \"changed\": %llu, \"first_error\": ", queries,
         failed, changed);
  PrintText(first_error);
  printf(", ");
}

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) return 2;
  const uint64_t timeout_ns =
      argc == 4 ? UINT64_C(1000000) * strtoull(argv[3], NULL, 10) : CKV_TIMEOUT_DEFAULT;
  const uint64_t none = CKV_LOCAL_CACHE_NONE;
  const ckv_open_options options = {
      .struct_size = sizeof options, .directory = argv[1], .local_cache_bytes = none};
  ckv_requester* requester;
  ckv_corpus* corpus;
  Require(ckv_open(&options, &requester) == CKV_OK, "open");
  Require(ckv_resolve(requester, argv[2], CKV_TIMEOUT_DEFAULT, &corpus) == CKV_OK, "resolve");
  ckv_corpus_facts facts = {.struct_size = sizeof facts};
  Require(ckv_corpus_describe(corpus, &facts) == CKV_OK, "describe");
  Require(facts.d_qk <= kWidthMax, "the corpus is too wide");
  const ckv_part part = {.struct_size = sizeof part, .corpus = corpus};
  const ckv_context_spec spec = {.struct_size = sizeof spec,
                                 .parts = &part,
                                 .part_count = 1,
                                 .policy = CKV_POLICY_ROUTE,
                                 .timeout_ns = CKV_TIMEOUT_DEFAULT};
  ckv_context* context;
  Require(ckv_context_open(requester, &spec, &context) == CKV_OK, "context");
  static uint16_t q[kRows * kWidthMax];
  for (uint32_t i = 0; i < kRows * facts.d_qk; ++i) q[i] = 0x3f80;  // 1 in bf16
  const size_t answer_bytes = sizeof(float) * kRows * (facts.d_v + 2);
  float* const answer = (float*)calloc(1, answer_bytes);
  float* const first_answer = (float*)calloc(1, answer_bytes);
  const ckv_segment segment = {.struct_size = sizeof segment, .context = context};
  const ckv_attend_call call = {.struct_size = sizeof call,
                                .layer = 1,
                                .row_count = kRows,
                                .q = q,
                                .wire = CKV_DTYPE_F32,
                                .o = answer,
                                .m = answer + kRows * facts.d_v,
                                .l = answer + kRows * (facts.d_v + 1),
                                .segments = &segment,
                                .segment_count = 1,
                                .timeout_ns = timeout_ns};
  unsigned long long queries = 0, failed = 0, changed = 0;
  char first_error[4096] = "";
  call_times times;
  call_times_begin(&times);
  for (; !StdinEnded(); ++queries) {
    const double begin = call_times_now();
    const ckv_status status = ckv_attend(requester, &call, NULL);
    call_times_add(&times, begin);
    if (status != CKV_OK) {
      if (failed++ == 0)
        snprintf(first_error, sizeof first_error, "%s: %s", ckv_status_name(status),
                 ckv_last_error(requester));
      continue;
    }
    if (queries == failed) {
      memcpy(first_answer, answer, answer_bytes);
      puts("answered");
      fflush(stdout);
    }
    changed += memcmp(first_answer, answer, answer_bytes) != 0;
  }
  PrintCounts(queries, failed, changed, first_error);
  call_times_print(&times);
  printf("}\n");
  ckv_context_close(context);
  ckv_corpus_free(corpus);
  Require(ckv_close(requester) == CKV_OK, "close");
  free(answer);
  free(first_answer);
  return 0;
}
