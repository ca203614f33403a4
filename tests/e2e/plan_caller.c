// An agent of a plan over the C interface: it routes calls of some query rows over a whole corpus,
// layer after layer, and thinks for a random time before each, exponential with a fixed seed.
//
//   plan_caller DIRECTORY CORPUS ROWS THINK_US CALLS SEED
//
// Prints "ready" once its lanes are connected, and begins when a line comes on stdin. At the end it
// prints one line of JSON: the quantiles 0.5, 0.9 and 0.99 of the calls' times in microseconds,
// their mean, the calls, and the seconds that all of it took.

#define _GNU_SOURCE

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/bindings/c/ckv.h"
#include "tests/bench/field/call_times.h"

enum { kWarmCalls = 64, kCallsMax = 1 << 20 };
static const double kLongestThink = 20;  // times the mean; beyond it are 2e-9 of all

static void Check(ckv_status status, ckv_requester* requester, const char* what) {
  if (status == CKV_OK) return;
  fprintf(stderr, "plan_caller: %s: %s: %s\n", what, ckv_status_name(status),
          ckv_last_error(requester));
  exit(1);
}

// Uniform in (0, 1).
static double Uniform(uint64_t* state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return ((double)(*state >> 11) + 0.5) / 9007199254740992.0;
}

static void Think(double mean_us, uint64_t* state) {
  const double us = fmin(-log(Uniform(state)), kLongestThink) * mean_us;
  const struct timespec rest = {(time_t)(us / 1e6), (long)(fmod(us, 1e6) * 1e3)};
  if (mean_us > 0) ppoll(NULL, 0, &rest, NULL);
}

static int Compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void Print(double* us, uint32_t calls, double seconds) {
  double sum = 0;
  for (uint32_t i = 0; i < calls; ++i) sum += us[i];
  qsort(us, calls, sizeof *us, Compare);
  printf(
      "{\"p50_us\": %.2f, \"p90_us\": %.2f, \"p99_us\": %.2f, \"mean_us\": %.2f, \"calls\": %u, "
      "\"seconds\": %.4f}\n",
      us[calls / 2], us[(uint32_t)(0.9 * calls)], us[(uint32_t)(0.99 * calls)], sum / calls, calls,
      seconds);
}

int main(int argc, char** argv) {
  if (argc != 7) {
    fprintf(stderr, "usage: plan_caller DIRECTORY CORPUS ROWS THINK_US CALLS SEED\n");
    return 2;
  }
  const uint32_t rows = (uint32_t)strtoul(argv[3], NULL, 10);
  const double think_us = atof(argv[4]);
  const uint32_t calls = (uint32_t)strtoul(argv[5], NULL, 10);
  uint64_t state = strtoull(argv[6], NULL, 10);
  if (rows == 0 || calls == 0 || calls > kCallsMax) return 2;

  const ckv_open_options options = {.struct_size = sizeof options,
                                    .directory = argv[1],
                                    .local_cache_bytes = CKV_LOCAL_CACHE_NONE};
  ckv_requester* requester = NULL;
  ckv_corpus* corpus = NULL;
  ckv_context* context = NULL;
  Check(ckv_open(&options, &requester), NULL, "open");
  Check(ckv_resolve(requester, argv[2], CKV_TIMEOUT_DEFAULT, &corpus), requester, "resolve");
  ckv_corpus_facts facts = {.struct_size = sizeof facts};
  Check(ckv_corpus_describe(corpus, &facts), requester, "describe");
  const ckv_part part = {.struct_size = sizeof part, .corpus = corpus};
  const ckv_context_spec spec = {.struct_size = sizeof spec,
                                 .parts = &part,
                                 .part_count = 1,
                                 .policy = CKV_POLICY_ROUTE,
                                 .timeout_ns = CKV_TIMEOUT_DEFAULT};
  Check(ckv_context_open(requester, &spec, &context), requester, "context");

  const size_t width = facts.d_qk, d_v = facts.d_v;
  uint16_t* const q = (uint16_t*)calloc(rows * width, sizeof *q);
  float* const answer = (float*)calloc(rows * (d_v + 2), sizeof *answer);
  double* const us = (double*)calloc(calls, sizeof *us);
  if (q == NULL || answer == NULL || us == NULL) return 1;
  for (size_t i = 0; i < rows * width; ++i) q[i] = 0x3e00;  // 0.125 in bf16
  const ckv_segment segment = {.struct_size = sizeof segment, .context = context};
  ckv_attend_call call = {.struct_size = sizeof call,
                          .row_count = rows,
                          .q = q,
                          .wire = CKV_DTYPE_BF16,
                          .o = answer,
                          .m = answer + rows * d_v,
                          .l = answer + rows * (d_v + 1),
                          .segments = &segment,
                          .segment_count = 1,
                          .timeout_ns = CKV_TIMEOUT_DEFAULT};
  for (uint32_t i = 0; i < kWarmCalls; ++i) {
    call.layer = i % facts.layers;
    Check(ckv_attend(requester, &call, NULL), requester, "attend");
  }
  puts("ready");
  fflush(stdout);
  if (getchar() == EOF) return 1;
  const double first = ckv_call_times_now();
  for (uint32_t i = 0; i < calls; ++i) {
    Think(think_us, &state);
    call.layer = i % facts.layers;
    const double begin = ckv_call_times_now();
    Check(ckv_attend(requester, &call, NULL), requester, "attend");
    us[i] = 1e6 * (ckv_call_times_now() - begin);
  }
  Print(us, calls, ckv_call_times_now() - first);
  ckv_context_close(context);
  ckv_corpus_free(corpus);
  Check(ckv_close(requester), NULL, "close");
  free(q);
  free(answer);
  free(us);
  return 0;
}
