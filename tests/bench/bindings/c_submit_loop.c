// Calls ckv_submit and ckv_wait from C, again and again: one layer of one token of 16 heads over a
// corpus. tests/bench/bindings_figures.py compares Python with it.
//
//   c_submit_loop DIRECTORY CORPUS
//
// Each line on stdin is a number of calls. For each, prints the median of their times in
// nanoseconds.

#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>

#include "client/bindings/c/ckv.h"
#include "tests/bench/bindings/c_timing.h"

enum { kRows = 16, kCallsMax = 1 << 20 };

static int Compare(const void* a, const void* b) {
  const int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
  return (x > y) - (x < y);
}

static void Ask(ckv_requester* requester, const ckv_attend_call* call) {
  ckv_ticket* ticket = NULL;
  int done = 0;
  Require(ckv_submit(requester, call, NULL, &ticket) == CKV_OK, "submit");
  Require(ckv_wait(ticket, CKV_TIMEOUT_DEFAULT, &done) == CKV_OK && done, "wait");
  ckv_ticket_free(ticket);
}

int main(int argc, char** argv) {
  Require(argc == 3, "DIRECTORY CORPUS");
  const ckv_open_options options = {
      .struct_size = sizeof options, .directory = argv[1], .fabrics = "shm"};
  ckv_requester* requester = NULL;
  Require(ckv_open(&options, &requester) == CKV_OK, "open");
  ckv_corpus* corpus = NULL;
  Require(ckv_resolve(requester, argv[2], CKV_TIMEOUT_DEFAULT, &corpus) == CKV_OK, "resolve");
  ckv_corpus_facts facts = {.struct_size = sizeof facts};
  Require(ckv_corpus_describe(corpus, &facts) == CKV_OK, "describe");
  const ckv_part part = {.struct_size = sizeof part, .corpus = corpus};
  const ckv_context_spec spec = {
      .struct_size = sizeof spec, .parts = &part, .part_count = 1, .policy = CKV_POLICY_ROUTE};
  ckv_context* context = NULL;
  Require(ckv_context_open(requester, &spec, &context) == CKV_OK, "open a context");
  uint16_t* const q = calloc(kRows * facts.d_qk, sizeof *q);
  float* const o = malloc(kRows * facts.d_v * sizeof *o);
  float m[kRows], l[kRows];
  int64_t* const times = malloc(kCallsMax * sizeof *times);
  Require(q != NULL && o != NULL && times != NULL, "no memory");
  const ckv_segment segment = {.struct_size = sizeof segment, .context = context};
  const ckv_attend_call call = {.struct_size = sizeof call,
                                .row_count = kRows,
                                .q = q,
                                .o = o,
                                .m = m,
                                .l = l,
                                .segments = &segment,
                                .segment_count = 1};
  int calls = 0;
  while (scanf("%d", &calls) == 1 && calls > 0 && calls <= kCallsMax) {
    for (int i = 0; i < calls; ++i) {
      const int64_t begin = Now();
      Ask(requester, &call);
      times[i] = Now() - begin;
    }
    qsort(times, (size_t)calls, sizeof *times, Compare);
    printf("%lld\n", (long long)times[calls / 2]);
    fflush(stdout);
  }
  free(q);
  free(o);
  free(times);
  ckv_context_close(context);
  ckv_corpus_free(corpus);
  return ckv_close(requester) == CKV_OK ? 0 : 1;
}
