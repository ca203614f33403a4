// Puts into a new corpus what another corpus has, by the C ABI, and finds it by its tokens. The ids
// and the rows must be the same, because ids name what rows were made of.
//
//   c_put DIRECTORY CORPUS NEW TOKENS     TOKENS: a file of the token ids of CORPUS, int32

#include <stdlib.h>
#include <string.h>

#include "client/bindings/c/ckv.h"
#include "tests/client/bindings/c/scenario.h"

#define TIMEOUT UINT64_C(30000000000)

enum { kJunk = 21 };  // tokens before the text that is looked for

typedef struct program {
  ckv_requester* requester;
  ckv_corpus* corpus;  // CORPUS
  ckv_corpus_facts facts;
  const char* name;  // of NEW
  int32_t* tokens;
  uint8_t* rows;  // [layers][tokens][row_bytes]
  uint8_t* ids;   // [chunks][32], and those below
  uint32_t* token_counts;
  uint64_t* positions;
} program;

static void Require(int holds, const char* what, const program* p) {
  if (holds) return;
  fprintf(stderr, "c_put: %s: %s\n", what, ckv_last_error(p == NULL ? NULL : p->requester));
  exit(1);
}

static void* Memory(size_t bytes) {
  void* const memory = malloc(bytes);
  Require(memory != NULL, "no memory", NULL);
  return memory;
}

// Reads CORPUS with all its rows.
static void Read(program* p, const char* name, const char* tokens) {
  Require(ckv_resolve(p->requester, name, TIMEOUT, &p->corpus) == CKV_OK, "resolve", p);
  p->facts.struct_size = sizeof p->facts;
  Require(ckv_corpus_describe(p->corpus, &p->facts) == CKV_OK, "describe", p);
  const uint32_t chunks = p->facts.chunk_count;
  p->ids = Memory((size_t)chunks * 32);
  p->token_counts = Memory(chunks * sizeof *p->token_counts);
  p->positions = Memory(chunks * sizeof *p->positions);
  Require(ckv_corpus_chunks(p->corpus, 0, chunks, p->ids, p->token_counts, p->positions) == CKV_OK,
          "chunks", p);
  p->tokens = Memory((kJunk + p->facts.token_count) * sizeof *p->tokens);
  FILE* const file = fopen(tokens, "rb");
  Require(file != NULL && fread(p->tokens + kJunk, sizeof *p->tokens, p->facts.token_count, file) ==
                              p->facts.token_count,
          tokens, NULL);
  fclose(file);
  for (int32_t i = 0; i < kJunk; ++i) p->tokens[i] = 100000 + i;
  const uint64_t bytes = p->facts.layers * p->facts.token_count * p->facts.row_bytes;
  p->rows = Memory(bytes);
  const ckv_fetch_call call = {
      .struct_size = sizeof call, .corpus = p->corpus, .rows = p->rows, .rows_bytes = bytes};
  Require(ckv_fetch(p->requester, &call, NULL) == CKV_OK, "fetch", p);
}

static ckv_put_target TargetOf(const program* p, const uint8_t* parent) {
  return (ckv_put_target){
      .struct_size = sizeof(ckv_put_target), .corpus = p->name, .parent = parent};
}

static ckv_put* Begin(const program* p, const ckv_put_target* target) {
  ckv_put* put = NULL;
  Require(ckv_put_begin(p->requester, target, &put) == CKV_OK, "begin a put", p);
  return put;
}

static ckv_put_chunk ChunkOf(const program* p, uint32_t chunk) {
  return (ckv_put_chunk){.struct_size = sizeof(ckv_put_chunk),
                         .token_ids = p->tokens + kJunk + p->positions[chunk],
                         .token_count = p->token_counts[chunk]};
}

// All rows of a chunk, the last layer first, each layer in two pieces.
static void AddRows(const program* p, ckv_put* put, uint32_t chunk) {
  const uint64_t width = p->facts.row_bytes, bytes = p->token_counts[chunk] * width;
  const uint64_t first = width * (p->token_counts[chunk] / 3);
  for (uint32_t layer = p->facts.layers; layer-- > 0;) {
    const uint8_t* const rows =
        p->rows + (layer * p->facts.token_count + p->positions[chunk]) * width;
    Require(ckv_put_add_rows(put, layer, 0, rows, first) == CKV_OK, "rows", p);
    Require(ckv_put_add_rows(put, layer, first, rows + first, bytes - first) == CKV_OK, "rows", p);
  }
}

// Puts the chunks [begin, end) behind the one before them, and expects that so many are new.
static void Put(const program* p, uint32_t begin, uint32_t end, uint32_t added) {
  ckv_put_target target = TargetOf(p, begin == 0 ? NULL : p->ids + (begin - 1) * 32);
  target.create = begin == 0 ? &p->facts : NULL;
  if (begin == 0) {
    target.ttl_ms = 3600000;
    target.kept_version_count = 2;
  }
  ckv_put* const put = Begin(p, &target);
  Require(ckv_close(p->requester) == CKV_FAILED_PRECONDITION, "close beside a put", p);
  for (uint32_t chunk = begin; chunk < end; ++chunk) {
    const ckv_put_chunk next = ChunkOf(p, chunk);
    Require(ckv_put_add_chunk(put, &next) == CKV_OK, "a chunk", p);
    AddRows(p, put, chunk);
  }
  ckv_put_report report = {.struct_size = sizeof report};
  Require(ckv_put_finish(put, TIMEOUT, &report) == CKV_OK, "finish", p);
  Require(report.added_count == added &&
              report.chunk_begin == end - (added == 0 ? 0 : end - begin) && report.version > 0 &&
              report.kept == 1,
          "the report of a put", p);
  uint8_t ids[32];
  Require(ckv_put_ids(put, ids, 1) == end - begin && memcmp(ids, p->ids + begin * 32, 32) == 0,
          "its ids", p);
  Require(ckv_put_finish(put, TIMEOUT, NULL) == CKV_FAILED_PRECONDITION, "finish again", p);
  ckv_put_free(put);
}

static void Refused(const program* p) {
  ckv_put* put = NULL;
  ckv_put_target target = TargetOf(p, NULL);
  Require(ckv_put_begin(p->requester, &target, &put) == CKV_NOT_FOUND && put == NULL,
          "a corpus that is not there", p);
  ckv_corpus_facts other = p->facts;
  other.d_v = other.d_qk + 1;
  target.create = &other;
  Require(ckv_put_begin(p->requester, &target, &put) == CKV_INVALID_ARGUMENT, "no geometry", p);
  target.create = &p->facts;
  target.parent = p->ids;
  Require(ckv_put_begin(p->requester, &target, &put) == CKV_FAILED_PRECONDITION, "no parent", p);
  target.parent = NULL;
  target.kept_version_count = 17;
  Require(ckv_put_begin(p->requester, &target, &put) == CKV_INVALID_ARGUMENT, "17 versions", p);
  target.kept_version_count = 0;
  target.bytes_max = p->facts.layers * p->facts.row_bytes * p->token_counts[0];
  put = Begin(p, &target);
  Require(ckv_put_row_bytes(put) == p->facts.row_bytes, "the bytes of a row", p);
  ckv_put_chunk next = ChunkOf(p, 0);
  Require(ckv_put_add_rows(put, 0, 0, p->rows, 2) == CKV_FAILED_PRECONDITION, "no chunk yet", p);
  Require(ckv_put_finish(put, TIMEOUT, NULL) == CKV_INVALID_ARGUMENT, "nothing to put", p);
  next.token_count = 0;
  Require(ckv_put_add_chunk(put, &next) == CKV_INVALID_ARGUMENT, "no tokens", p);
  next = ChunkOf(p, 0);
  Require(ckv_put_add_chunk(put, &next) == CKV_OK, "a chunk", p);
  Require(ckv_put_add_rows(put, p->facts.layers, 0, p->rows, 2) == CKV_INVALID_ARGUMENT,
          "a layer beyond", p);
  Require(ckv_put_add_rows(put, 0, 2, p->rows, 2) == CKV_INVALID_ARGUMENT, "a gap", p);
  Require(ckv_put_finish(put, TIMEOUT, NULL) == CKV_FAILED_PRECONDITION, "rows that are missing",
          p);
  AddRows(p, put, 0);
  next = ChunkOf(p, 1);
  next.position = p->positions[1] + 1;
  Require(ckv_put_add_chunk(put, &next) == CKV_INVALID_ARGUMENT, "a gap between chunks", p);
  next.position = p->positions[1];
  Require(ckv_put_add_chunk(put, &next) == CKV_RESOURCE_EXHAUSTED, "more than bytes_max", p);
  ckv_put_free(put);  // nothing was published: the first Put makes the corpus
}

// NEW has the rows of CORPUS, bit by bit.
static void Compare(const program* p) {
  ckv_corpus* made = NULL;
  Require(ckv_resolve(p->requester, p->name, TIMEOUT, &made) == CKV_OK, "resolve", p);
  ckv_corpus_facts facts = {.struct_size = sizeof facts};
  Require(ckv_corpus_describe(made, &facts) == CKV_OK && facts.chunk_count == p->facts.chunk_count,
          "its chunks", p);
  uint8_t* const ids = Memory((size_t)facts.chunk_count * 32);
  Require(ckv_corpus_chunks(made, 0, facts.chunk_count, ids, NULL, NULL) == CKV_OK &&
              memcmp(ids, p->ids, (size_t)facts.chunk_count * 32) == 0,
          "its ids", p);
  const uint64_t bytes = facts.layers * facts.token_count * facts.row_bytes;
  uint8_t* const rows = Memory(bytes);
  const ckv_fetch_call call = {
      .struct_size = sizeof call, .corpus = made, .rows = rows, .rows_bytes = bytes};
  Require(ckv_fetch(p->requester, &call, NULL) == CKV_OK, "fetch what was put", p);
  Require(memcmp(rows, p->rows, bytes) == 0, "its rows", p);
  free(rows);
  free(ids);
  ckv_corpus_free(made);
}

// The chain is found from the prompt's beginning on, and nowhere else.
static void Find(const program* p) {
  ckv_find_call call = {.struct_size = sizeof call,
                        .tokens = p->tokens + kJunk,
                        .token_count = (uint32_t)p->facts.token_count,
                        .model_of = p->corpus};
  ckv_find_report report = {.struct_size = sizeof report};
  ckv_corpus* found = NULL;
  Require(ckv_find(p->requester, &call, &found, &report) == CKV_OK, "find", p);
  uint32_t begins[2] = {9, 9};
  int64_t offsets[2] = {9, 9};
  Require(ckv_found_spans(found, 0, 2, begins, offsets) == CKV_OK && begins[0] == 0 &&
              begins[1] == p->token_counts[0] && offsets[0] == 0 && offsets[1] == 0,
          "its spans", p);
  Require(
      ckv_found_spans(found, 0, p->facts.chunk_count + 1, begins, offsets) == CKV_INVALID_ARGUMENT,
      "spans beyond", p);
  Require(report.matched_token_count >= p->facts.token_count - 16 && report.truncated == 0,
          "what it covers", p);
  ckv_corpus_free(found);
  Require(ckv_found_spans(p->corpus, 0, 1, begins, offsets) == CKV_FAILED_PRECONDITION,
          "spans of a corpus by name", p);
  // The first chunk has no parent, so it is found anywhere, and those of its chain behind it.
  call.tokens = p->tokens;
  call.token_count += kJunk;
  Require(ckv_find(p->requester, &call, &found, NULL) == CKV_OK, "find behind other text", p);
  Require(ckv_found_spans(found, 0, 1, begins, offsets) == CKV_OK && begins[0] == kJunk &&
              offsets[0] == kJunk,
          "its span", p);
  // What was found is attended like any corpus.
  const ckv_part part = {.struct_size = sizeof part, .corpus = found, .offset = kJunk};
  const ckv_context_spec spec = {.struct_size = sizeof spec, .parts = &part, .part_count = 1};
  ckv_context* context = NULL;
  Require(ckv_context_open(p->requester, &spec, &context) == CKV_OK, "a context of it", p);
  ckv_context_close(context);
  ckv_corpus_free(found);
  call.token_count = kJunk;
  Require(ckv_find(p->requester, &call, &found, NULL) == CKV_NOT_FOUND && found == NULL,
          "text that nobody has", p);
}

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: c_put DIRECTORY CORPUS NEW TOKENS\n");
    return 2;
  }
  program p = {.name = argv[3]};
  const ckv_open_options options = {.struct_size = sizeof options, .directory = argv[1]};
  Require(ckv_open(&options, &p.requester) == CKV_OK, "open", NULL);
  Read(&p, argv[2], argv[4]);
  Refused(&p);
  Put(&p, 0, 3, 3);
  Put(&p, 3, p.facts.chunk_count, p.facts.chunk_count - 3);
  Put(&p, 3, p.facts.chunk_count, 0);  // as one whose answer was lost
  Compare(&p);
  Find(&p);
  ckv_corpus_free(p.corpus);
  Require(ckv_close(p.requester) == CKV_OK, "close", &p);
  free(p.tokens);
  free(p.rows);
  free(p.ids);
  free(p.token_counts);
  free(p.positions);
  return 0;
}
