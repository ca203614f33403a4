// The queries of the C program and the C++ program, and how they write answers to a file. C11 and
// C++.

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum {
  kHeads = 4,
  kRows = 8,       // query rows of a call: two tokens
  kSelected = 5,   // selected rows of each token
  kOwnTokens = 6,  // the suffix
  kShift = 37,     // the distance of the corpus from its canonical position
};

// A fixed sequence, the same in both programs.
static inline uint32_t NextRandom(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

// Fills with bf16 values of magnitude 1/8 to 2, both signs: exponent 124 to 127, all mantissas.
static inline void FillBf16(uint16_t* values, size_t count, uint32_t seed) {
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t random = NextRandom(&state);
    values[i] =
        (uint16_t)((random & 1) << 15 | (124 + (random >> 1) % 4) << 7 | ((random >> 4) & 0x7f));
  }
}

// Lists of rows for each of kRows / kHeads tokens; -1 is skipped.
static inline void FillSelection(int32_t* selected, uint64_t token_count, uint32_t seed) {
  uint32_t state = seed;
  for (int i = 0; i < kRows / kHeads * kSelected; ++i)
    selected[i] = i % 4 == 3 ? -1 : (int32_t)(NextRandom(&state) % token_count);
}

// How many own rows each query row sees: those of the second token one more.
static inline void FillVisible(uint32_t* visible) {
  for (uint32_t i = 0; i < kRows; ++i) visible[i] = kOwnTokens - 1 + i / kHeads;
}

static inline void WriteAll(FILE* out, const void* bytes, size_t size) {
  if (fwrite(bytes, 1, size, out) != size) {
    perror("write");
    exit(1);
  }
}

// Writes one answer: o, m, l of kRows rows.
static inline void WriteAnswer(FILE* out, const float* o, const float* m, const float* l,
                               uint32_t d_v) {
  WriteAll(out, o, sizeof(float) * kRows * d_v);
  WriteAll(out, m, sizeof(float) * kRows);
  WriteAll(out, l, sizeof(float) * kRows);
}
