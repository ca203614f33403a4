// What the C loops of benchmarks share: a check that ends the program, and the time.

#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/bindings/c/ckv.h"

// Ends the program unless `holds`. Prints what failed and the library's error.
static inline void Require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "%s: %s\n", what, ckv_last_error(NULL));
  exit(1);
}

// Returns nanoseconds. Files that include this define _POSIX_C_SOURCE 200809L.
static inline int64_t Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
