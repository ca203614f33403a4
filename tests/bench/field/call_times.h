// How long the calls of a caller took, in C for the callers of both languages.
//
// ckv_call_times_print prints two members of a JSON object: "ms", the quantiles 0.5, 0.99, 0.999
// and 1 of all calls, and "slow", the begin and the length of each call that took kSlowS or more,
// in seconds of CLOCK_MONOTONIC, which all processes of a host share.
//
// If CKV_CALL_EVERY_MS is set, a caller begins a call each so many milliseconds, and waits before
// for ckv_call_times_rest_ms. Otherwise it calls without a pause.

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kCallCountMax = 1 << 21, kSlowCountMax = 4096 };
static const double kSlowS = 0.02;

typedef struct ckv_call_times {
  float* took_s;  // of the first kCallCountMax calls
  double* slow;   // pairs
  uint32_t count, slow_count;
  double every_s, next_s;  // between two calls; when the next one begins
} ckv_call_times;

static inline double ckv_call_times_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void ckv_call_times_begin(ckv_call_times* times) {
  times->took_s = (float*)malloc(sizeof(float) * kCallCountMax);
  times->slow = (double*)malloc(sizeof(double) * 2 * kSlowCountMax);
  times->count = times->slow_count = 0;
  const char* const every_ms = getenv("CKV_CALL_EVERY_MS");
  times->every_s = every_ms == NULL ? 0 : 1e-3 * atof(every_ms);
  times->next_s = ckv_call_times_now();
}

// Milliseconds until the next call, rounded up. A call that is late moves those after it.
static inline int ckv_call_times_rest_ms(ckv_call_times* times) {
  if (times->every_s == 0) return 0;
  const double now = ckv_call_times_now(), rest = times->next_s - now;
  times->next_s = (rest > 0 ? times->next_s : now) + times->every_s;
  return rest > 0 ? (int)(1e3 * rest) + 1 : 0;
}

static inline void ckv_call_times_add(ckv_call_times* times, double begin) {
  const double took = ckv_call_times_now() - begin;
  if (times->count < kCallCountMax) times->took_s[times->count++] = (float)took;
  if (took < kSlowS || times->slow_count == kSlowCountMax) return;
  times->slow[2 * times->slow_count] = begin;
  times->slow[2 * times->slow_count++ + 1] = took;
}

static inline int ckv_call_times_compare(const void* a, const void* b) {
  const float x = *(const float*)a, y = *(const float*)b;
  return (x > y) - (x < y);
}

static inline void ckv_call_times_print(ckv_call_times* times) {
  qsort(times->took_s, times->count, sizeof(float), ckv_call_times_compare);
  const double quantiles[] = {0.5, 0.99, 0.999, 1};
  printf("\"ms\": [");
  for (int i = 0; i < 4; ++i) {
    const uint32_t at = times->count == 0 ? 0 : (uint32_t)(quantiles[i] * (times->count - 1));
    printf("%s%.3f", i == 0 ? "" : ", ", times->count == 0 ? 0 : 1e3 * (double)times->took_s[at]);
  }
  printf("], \"slow\": [");
  for (uint32_t i = 0; i < times->slow_count; ++i) {
    printf("%s[%.6f, %.6f]", i == 0 ? "" : ", ", times->slow[2 * i], times->slow[2 * i + 1]);
  }
  printf("]");
  free(times->took_s);
  free(times->slow);
}
