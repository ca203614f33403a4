// Fetches rows, and routes query rows, from C, again and again: beside the peers of
// tests/bench/peer_transfers.py, and beside C++ and Python in tests/bench/peer_doors.py.
//
//   c_loop DIRECTORY FABRIC
//
// Each line on stdin is a command. Except for dump, the answer is a line with the time of each
// repetition in nanoseconds.
//   rows CORPUS LAYERS COUNT      the first layers of a corpus into one range of memory
//   blocks CORPUS LAYERS COUNT    the same into blocks of 16 rows, scattered over a cache of four
//                                 times as many
//   route CORPUS ROWS COUNT       query rows over the whole corpus
//   memcpy BYTES COUNT            between two ranges of this process, neither of them used before
//   dump PATH                     writes what the last fetch brought, block after block, and
//                                 answers with the number of bytes

#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/bindings/c/ckv.h"
#include "tests/bench/bindings/c_timing.h"

enum { kBlockRows = 16, kCacheFactor = 4, kLayersMax = 64, kRowsMax = 1024, kCountMax = 100000 };

// Where the last fetch put its rows.
typedef struct Memory {
  char* bytes;
  size_t size;
  uint32_t* table;  // [block_count]; null if the rows are in one range
  uint32_t block_count, layers;
  size_t block_bytes, layer_bytes;
} Memory;

// Pages are touched here, so that no fetch meets a new one.
static char* Touched(size_t bytes, int value) {
  char* const made = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  Require(made != NULL, "no memory");
  memset(made, value, bytes);
  return made;
}

// A permutation that looks random and is always the same.
static uint32_t* Scattered(uint32_t count, uint32_t of) {
  uint32_t* const places = malloc(of * sizeof *places);
  Require(places != NULL, "no memory");
  for (uint32_t i = 0; i < of; ++i) places[i] = i;
  uint64_t state = 1;
  for (uint32_t i = 0; i < count; ++i) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    const uint32_t other = i + (uint32_t)((state >> 33) % (of - i));
    const uint32_t kept = places[i];
    places[i] = places[other];
    places[other] = kept;
  }
  return places;
}

static void Print(const int64_t* times, int count) {
  for (int i = 0; i < count; ++i) printf("%s%lld", i == 0 ? "" : " ", (long long)times[i]);
  printf("\n");
  fflush(stdout);
}

static void Forget(Memory* memory) {
  free(memory->bytes);
  free(memory->table);
  memset(memory, 0, sizeof *memory);
}

// Fetches `count` times. `scattered`: into blocks.
static void Fetch(ckv_requester* requester, const char* name, uint32_t layers, int count,
                  bool scattered, Memory* memory, int64_t* times) {
  ckv_corpus* corpus = NULL;
  Require(ckv_resolve(requester, name, CKV_TIMEOUT_DEFAULT, &corpus) == CKV_OK, "resolve");
  ckv_corpus_facts facts = {.struct_size = sizeof facts};
  Require(ckv_corpus_describe(corpus, &facts) == CKV_OK, "describe");
  Require(layers <= kLayersMax, "too many layers");
  const size_t block_bytes = (size_t)kBlockRows * facts.row_bytes;
  const uint32_t blocks = (uint32_t)(facts.token_count / kBlockRows);
  const size_t layer_bytes = facts.token_count * facts.row_bytes * (scattered ? kCacheFactor : 1);
  if (memory->size != layer_bytes * layers || (memory->table != NULL) != scattered) {
    Forget(memory);
    *memory = (Memory){.bytes = Touched(layer_bytes * layers, 0),
                       .size = layer_bytes * layers,
                       .table = scattered ? Scattered(blocks, blocks * kCacheFactor) : NULL,
                       .block_count = blocks,
                       .layers = layers,
                       .block_bytes = block_bytes,
                       .layer_bytes = layer_bytes};
  }
  void* first[kLayersMax];
  for (uint32_t l = 0; l < layers; ++l) first[l] = memory->bytes + l * layer_bytes;
  const ckv_block_place place = {.struct_size = sizeof place,
                                 .layers = first,
                                 .table = memory->table,
                                 .table_count = blocks,
                                 .block_count = blocks * kCacheFactor,
                                 .block_rows = kBlockRows};
  ckv_fetch_call call = {.struct_size = sizeof call, .corpus = corpus, .layer_end = layers};
  if (scattered) {
    call.place = &place;
  } else {
    call.rows = memory->bytes;
    call.rows_bytes = memory->size;
  }
  for (int i = 0; i < count; ++i) {
    const int64_t begin = Now();
    Require(ckv_fetch(requester, &call, NULL) == CKV_OK, "fetch");
    times[i] = Now() - begin;
  }
  ckv_corpus_free(corpus);
}

static void Route(ckv_requester* requester, const char* name, uint32_t rows, int count,
                  int64_t* times) {
  Require(rows > 0 && rows <= kRowsMax, "rows");
  ckv_corpus* corpus = NULL;
  Require(ckv_resolve(requester, name, CKV_TIMEOUT_DEFAULT, &corpus) == CKV_OK, "resolve");
  ckv_corpus_facts facts = {.struct_size = sizeof facts};
  Require(ckv_corpus_describe(corpus, &facts) == CKV_OK, "describe");
  const ckv_part part = {.struct_size = sizeof part, .corpus = corpus};
  const ckv_context_spec spec = {
      .struct_size = sizeof spec, .parts = &part, .part_count = 1, .policy = CKV_POLICY_ROUTE};
  ckv_context* context = NULL;
  Require(ckv_context_open(requester, &spec, &context) == CKV_OK, "open a context");
  uint16_t* const q = calloc((size_t)rows * facts.d_qk, sizeof *q);
  float* const o = malloc((size_t)rows * facts.d_v * sizeof *o);
  float* const m = malloc(2 * rows * sizeof *m);
  Require(q != NULL && o != NULL && m != NULL, "no memory");
  const ckv_segment segment = {.struct_size = sizeof segment, .context = context};
  const ckv_attend_call call = {.struct_size = sizeof call,
                                .row_count = rows,
                                .q = q,
                                .o = o,
                                .m = m,
                                .l = m + rows,
                                .segments = &segment,
                                .segment_count = 1};
  for (int i = 0; i < count; ++i) {
    const int64_t begin = Now();
    Require(ckv_attend(requester, &call, NULL) == CKV_OK, "attend");
    times[i] = Now() - begin;
  }
  free(q);
  free(o);
  free(m);
  ckv_context_close(context);
  ckv_corpus_free(corpus);
}

static void Copy(size_t bytes, int count, int64_t* times) {
  char* const from = Touched(bytes, 1);
  char* const to = Touched(bytes, 2);
  for (int i = 0; i < count; ++i) {
    const int64_t begin = Now();
    memcpy(to, from, bytes);
    __asm__ volatile("" : : "r"(to) : "memory");
    times[i] = Now() - begin;
  }
  free(from);
  free(to);
}

static void Dump(const Memory* memory, const char* path) {
  FILE* const file = fopen(path, "wb");
  Require(file != NULL, "cannot write the dump");
  size_t bytes = 0;
  for (uint32_t l = 0; l < memory->layers; ++l) {
    const char* const layer = memory->bytes + l * memory->layer_bytes;
    if (memory->table == NULL) bytes += fwrite(layer, 1, memory->layer_bytes, file);
    for (uint32_t b = 0; memory->table != NULL && b < memory->block_count; ++b)
      bytes += fwrite(layer + memory->table[b] * memory->block_bytes, 1, memory->block_bytes, file);
  }
  Require(fclose(file) == 0, "cannot write the dump");
  printf("%zu\n", bytes);
  fflush(stdout);
}

int main(int argc, char** argv) {
  Require(argc == 3, "DIRECTORY FABRIC");
  const ckv_open_options options = {.struct_size = sizeof options,
                                    .directory = argv[1],
                                    .fabrics = argv[2],
                                    .local_cache_bytes = CKV_LOCAL_CACHE_NONE};
  ckv_requester* requester = NULL;
  Require(ckv_open(&options, &requester) == CKV_OK, "open");
  Memory memory = {0};
  int64_t* const times = malloc(kCountMax * sizeof *times);
  Require(times != NULL, "no memory");
  char line[512], name[256];
  while (fgets(line, sizeof line, stdin) != NULL) {
    unsigned layers = 0;  // or rows
    unsigned long long bytes = 0;
    int count = 0;
    if (sscanf(line, "rows %255s %u %d", name, &layers, &count) == 3 ||
        sscanf(line, "blocks %255s %u %d", name, &layers, &count) == 3) {
      Require(count > 0 && count <= kCountMax, line);
      Fetch(requester, name, layers, count, line[0] == 'b', &memory, times);
      Print(times, count);
    } else if (sscanf(line, "route %255s %u %d", name, &layers, &count) == 3) {
      Require(count > 0 && count <= kCountMax, line);
      Route(requester, name, layers, count, times);
      Print(times, count);
    } else if (sscanf(line, "memcpy %llu %d", &bytes, &count) == 2) {
      Require(count > 0 && count <= kCountMax, line);
      Copy(bytes, count, times);
      Print(times, count);
    } else if (sscanf(line, "dump %255s", name) == 1) {
      Dump(&memory, name);
    } else {
      Require(false, line);
    }
  }
  Forget(&memory);
  free(times);
  return ckv_close(requester) == CKV_OK ? 0 : 1;
}
