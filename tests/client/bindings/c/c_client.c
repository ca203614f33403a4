// Queries a fleet through the C ABI, compiled as C11, and writes all answers to a file.
// cc_client.cc makes the same queries through the C++ client; c_abi_e2e.py compares.
//
//   c_client DIRECTORY CORPUS FILE

#include <stdlib.h>
#include <string.h>

#include "client/bindings/c/ckv.h"
#include "tests/client/bindings/c/scenario.h"

#define TIMEOUT UINT64_C(30000000000)

typedef struct program {
  ckv_requester* requester;
  ckv_corpus* corpus;
  ckv_corpus_facts facts;
  FILE* out;
  uint16_t* q;
  float *o, *m, *l;
} program;

static void Require(int holds, const char* what, const program* p) {
  if (holds) return;
  fprintf(stderr, "c_client: %s: %s\n", what, ckv_last_error(p == NULL ? NULL : p->requester));
  exit(1);
}

// The common fields of a call in all scenarios.
static ckv_attend_call CallOf(program* p, uint32_t layer, const ckv_segment* segments,
                              uint32_t segment_count) {
  FillBf16(p->q, (size_t)kRows * p->facts.d_qk, layer + 1);
  memset(p->o, 0xff, sizeof(float) * kRows * p->facts.d_v);
  return (ckv_attend_call){.struct_size = sizeof(ckv_attend_call),
                           .layer = layer,
                           .row_count = kRows,
                           .q = p->q,
                           .o = p->o,
                           .m = p->m,
                           .l = p->l,
                           .segments = segments,
                           .segment_count = segment_count,
                           .wire = CKV_DTYPE_F32,
                           .timeout_ns = TIMEOUT};
}

static void Answered(program* p) { WriteAnswer(p->out, p->o, p->m, p->l, p->facts.d_v); }

// Parts: the whole corpus at both layers; some chunks, moved, in bf16; a selection.
static void AttendParts(program* p) {
  ckv_part part = {.struct_size = sizeof part, .corpus = p->corpus};
  ckv_segment segment = {.struct_size = sizeof segment, .part = &part};
  for (uint32_t layer = 0; layer < p->facts.layers; ++layer) {
    const ckv_attend_call call = CallOf(p, layer, &segment, 1);
    ckv_attend_report report = {.struct_size = sizeof report};
    Require(ckv_attend(p->requester, &call, &report) == CKV_OK, "attend", p);
    Require(report.routed_pairs == kRows * p->facts.token_count && report.same_bits_anywhere == 1 &&
                report.holder_count >= 1 && report.precision == CKV_PRECISION_EXACT,
            "the report", p);
    Answered(p);
  }

  const uint32_t chunks[] = {2, 0};
  const int64_t offsets[] = {-5, kShift};
  part.chunks = chunks;
  part.offsets = offsets;
  part.chunk_count = 2;
  ckv_attend_call call = CallOf(p, 1, &segment, 1);
  call.wire = CKV_DTYPE_BF16;
  Require(ckv_attend(p->requester, &call, NULL) == CKV_OK, "attend chunks", p);
  Answered(p);

  int32_t selected[kRows / kHeads * kSelected];
  FillSelection(selected, p->facts.token_count, 7);
  part = (ckv_part){.struct_size = sizeof part, .corpus = p->corpus, .offset = kShift};
  segment.selected = selected;
  segment.selected_count = kSelected;
  segment.selected_group_rows = kHeads;
  call = CallOf(p, 0, &segment, 1);
  Require(ckv_attend(p->requester, &call, NULL) == CKV_OK, "attend a selection", p);
  Answered(p);
}

static ckv_context* OpenContext(program* p, uint32_t policy) {
  const ckv_part part = {.struct_size = sizeof part, .corpus = p->corpus, .offset = kShift};
  const ckv_context_spec spec = {.struct_size = sizeof spec,
                                 .parts = &part,
                                 .part_count = 1,
                                 .policy = policy,
                                 .expect_steps = 4,
                                 .timeout_ns = TIMEOUT};
  ckv_context* context = NULL;
  Require(ckv_context_open(p->requester, &spec, &context) == CKV_OK, "open a context", p);
  Require(ckv_context_token_count(context) == p->facts.token_count, "its tokens", p);
  return context;
}

// Two sequences: one with a suffix of its own and one with a selection.
static void AttendContexts(program* p, uint32_t policy) {
  ckv_context* const context = OpenContext(p, policy);
  uint16_t* const own_rows = malloc((size_t)kOwnTokens * p->facts.row_bytes);
  uint32_t visible[kRows];
  int32_t selected[kSelected * kRows / kHeads];
  FillBf16(own_rows, (size_t)kOwnTokens * p->facts.d_qk, 99);
  FillVisible(visible);
  FillSelection(selected, p->facts.token_count, 11);
  const ckv_own_rows own = {
      .struct_size = sizeof own, .rows = own_rows, .row_count = kOwnTokens, .visible = visible};
  const ckv_segment segments[2] = {{.struct_size = sizeof segments[0],
                                    .context = context,
                                    .row_count = kRows / 2,
                                    .own = &own,
                                    .own_count = 1},
                                   {.struct_size = sizeof segments[0],
                                    .context = context,
                                    .row_begin = kRows / 2,
                                    .row_count = kRows / 2,
                                    .selected = selected,
                                    .selected_count = kSelected,
                                    .selected_group_rows = kHeads}};
  for (uint32_t layer = 0; layer < p->facts.layers; ++layer) {
    ckv_attend_call call = CallOf(p, layer, segments, 2);
    Require(ckv_attend(p->requester, &call, NULL) == CKV_OK, "attend contexts", p);
    Answered(p);

    // The same by a ticket, whose structs are overwritten before it is done.
    call = CallOf(p, layer, segments, 2);
    ckv_attend_report report = {.struct_size = sizeof report};
    ckv_ticket* ticket = NULL;
    Require(ckv_submit(p->requester, &call, &report, &ticket) == CKV_OK, "submit", p);
    memset(&call, 0xee, sizeof call);
    int done = 0;
    Require(ckv_close(p->requester) == CKV_FAILED_PRECONDITION, "close beside a ticket", p);
    Require(ckv_wait(ticket, TIMEOUT, &done) == CKV_OK && done == 1, "wait", p);
    Require(ckv_poll(ticket, &done) == CKV_OK && done == 1, "poll what is done", p);
    Require(report.own_pairs > 0, "the ticket's report", p);
    ckv_ticket_free(ticket);
    Answered(p);
  }

  // Polled to its end.
  ckv_attend_call call = CallOf(p, 0, segments, 2);
  ckv_ticket* ticket = NULL;
  Require(ckv_submit(p->requester, &call, NULL, &ticket) == CKV_OK, "submit", p);
  int done = 0;
  while (done == 0) Require(ckv_poll(ticket, &done) == CKV_OK, "poll", p);
  ckv_ticket_free(ticket);
  Answered(p);

  // Cancelled: it ends, with nothing written after that.
  call = CallOf(p, 0, segments, 2);
  Require(ckv_submit(p->requester, &call, NULL, &ticket) == CKV_OK, "submit", p);
  ckv_cancel(ticket);
  Require(ckv_wait(ticket, 0, &done) == CKV_CANCELLED && done == 1, "wait for the cancelled", p);
  ckv_ticket_free(ticket);
  ckv_context_close(context);
  free(own_rows);
}

static void DescribeCorpus(program* p, const char* name) {
  Require(ckv_resolve(p->requester, "no-such-corpus", TIMEOUT, &p->corpus) == CKV_NOT_FOUND,
          "a corpus that is not there", p);
  Require(p->corpus == NULL && strstr(ckv_last_error(p->requester), "no-such-corpus") != NULL,
          "its error", p);
  Require(ckv_resolve(p->requester, name, TIMEOUT, &p->corpus) == CKV_OK, "resolve", p);
  p->facts.struct_size = sizeof p->facts;
  Require(ckv_corpus_describe(p->corpus, &p->facts) == CKV_OK, "describe", p);
  const ckv_corpus_facts* const facts = &p->facts;
  Require(strcmp(facts->name, name) == 0, "the name", p);
  WriteAll(p->out, facts->model, strlen(facts->model));
  const uint64_t numbers[] = {facts->version,
                              facts->token_count,
                              facts->chunk_count,
                              facts->layers,
                              facts->d_qk,
                              facts->d_v,
                              facts->d_rope,
                              facts->row_bytes,
                              facts->rope_style,
                              facts->row_dtype,
                              (uint64_t)(1e6 * facts->softmax_scale)};
  WriteAll(p->out, numbers, sizeof numbers);
  uint8_t* const ids = malloc((size_t)facts->chunk_count * 32);
  uint32_t* const token_counts = malloc(facts->chunk_count * sizeof *token_counts);
  uint64_t* const positions = malloc(facts->chunk_count * sizeof *positions);
  Require(
      ckv_corpus_chunks(p->corpus, 0, facts->chunk_count, ids, token_counts, positions) == CKV_OK,
      "chunks", p);
  WriteAll(p->out, ids, (size_t)facts->chunk_count * 32);
  WriteAll(p->out, token_counts, facts->chunk_count * sizeof *token_counts);
  WriteAll(p->out, positions, facts->chunk_count * sizeof *positions);
  Require(ckv_corpus_chunks(p->corpus, 1, facts->chunk_count + 1, ids, NULL, NULL) ==
              CKV_INVALID_ARGUMENT,
          "a range beyond the corpus", p);
  free(ids);
  free(token_counts);
  free(positions);
}

// Writes rows of a layout as [layer][token][width].
static void WriteRows(program* p, const uint8_t* rows, uint32_t layers, uint64_t tokens,
                      uint64_t layer_stride, uint64_t token_stride, uint32_t width) {
  for (uint32_t layer = 0; layer < layers; ++layer) {
    for (uint64_t token = 0; token < tokens; ++token)
      WriteAll(p->out, rows + layer * layer_stride + token * token_stride, width);
  }
}

static void Fetch(program* p) {
  const uint32_t layers = p->facts.layers, width = p->facts.row_bytes;
  const uint64_t tokens = p->facts.token_count, bytes = 2 * layers * tokens * width;
  uint8_t* const rows = malloc(bytes);
  // All of the corpus, at its canonical position.
  ckv_fetch_call call = {.struct_size = sizeof call,
                         .corpus = p->corpus,
                         .rows = rows,
                         .rows_bytes = layers * tokens * width,
                         .timeout_ns = TIMEOUT};
  ckv_fetch_report report = {.struct_size = sizeof report};
  Require(ckv_fetch(p->requester, &call, &report) == CKV_OK, "fetch", p);
  Require(report.row_count == layers * tokens && report.chunk_count == p->facts.chunk_count &&
              report.not_fetched_count == 0 && report.bytes == layers * tokens * width,
          "the report of a fetch", p);
  WriteRows(p, rows, layers, tokens, tokens * width, width, width);

  // Some chunks of one layer, at another position.
  uint32_t token_counts[2];
  Require(ckv_corpus_chunks(p->corpus, 1, 3, NULL, token_counts, NULL) == CKV_OK, "chunks", p);
  call.chunk_begin = 1;
  call.chunk_end = 3;
  call.layer_begin = 1;
  call.layer_end = 2;
  call.rotate = 1;
  call.position = 1000;
  Require(ckv_fetch(p->requester, &call, NULL) == CKV_OK, "fetch at a position", p);
  WriteRows(p, rows, 1, token_counts[0] + token_counts[1], 0, width, width);

  // [token][layer], with gaps that stay unchanged.
  call = (ckv_fetch_call){.struct_size = sizeof call,
                          .corpus = p->corpus,
                          .rows = rows,
                          .rows_bytes = bytes,
                          .layer_stride = width + 6,
                          .token_stride = layers * (width + 6),
                          .rotate = 1,
                          .position = kShift};
  memset(rows, 0x5a, bytes);
  Require(ckv_fetch(p->requester, &call, NULL) == CKV_OK, "fetch by strides", p);
  WriteRows(p, rows, layers, tokens, call.layer_stride, call.token_stride, width);
  for (uint64_t i = 0; i < layers * tokens; ++i)
    Require(rows[i * (width + 6) + width] == 0x5a, "a gap", p);

  // A slice of each row.
  call = (ckv_fetch_call){.struct_size = sizeof call,
                          .corpus = p->corpus,
                          .rows = rows,
                          .rows_bytes = bytes,
                          .column_begin = 8,
                          .column_bytes = 16};
  Require(ckv_fetch(p->requester, &call, NULL) == CKV_OK, "fetch a slice", p);
  WriteRows(p, rows, layers, tokens, tokens * 16, 16, 16);

  call.rows_bytes = layers * tokens * 16 - 1;
  Require(ckv_fetch(p->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "too little memory", p);
  call.rows_bytes = bytes;
  call.token_stride = 14;
  Require(ckv_fetch(p->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "rows that overlap", p);
  call.token_stride = 0;
  call.rows = rows + 1;
  Require(ckv_fetch(p->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "an odd address", p);
  call.rows = rows;
  call.early_return_ns = 5;
  Require(ckv_fetch(p->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "an early return", p);
  free(rows);
}

static void FetchByTicket(program* p) {
  const uint32_t layers = p->facts.layers, width = p->facts.row_bytes;
  const uint64_t tokens = p->facts.token_count;
  uint8_t* const rows = malloc(layers * tokens * width);
  ckv_fetch_call call = {.struct_size = sizeof call,
                         .corpus = p->corpus,
                         .rows = rows,
                         .rows_bytes = layers * tokens * width,
                         .timeout_ns = TIMEOUT,
                         .early_return_ns = TIMEOUT - 1};
  ckv_fetch_ticket* ticket = NULL;
  int done = 0;
  uint32_t count = 7, chunks[8] = {0};
  Require(ckv_fetch_begin(p->requester, &call, &ticket) == CKV_OK, "begin a fetch", p);
  Require(ckv_close(p->requester) == CKV_FAILED_PRECONDITION, "close beside a fetch", p);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    Require(ckv_fetch_wait_layer(ticket, layer, TIMEOUT, &done) == CKV_OK && done, "a layer", p);
    WriteRows(p, rows + layer * tokens * width, 1, tokens, 0, width, width);
  }
  Require(ckv_fetch_wait_layer(ticket, layers, 0, &done) == CKV_INVALID_ARGUMENT, "a layer beyond",
          p);
  ckv_fetch_report report = {.struct_size = sizeof report};
  Require(ckv_fetch_wait(ticket, TIMEOUT, &done, &report) == CKV_OK && done, "its end", p);
  Require(report.row_count == layers * tokens && report.not_fetched_count == 0, "its report", p);
  Require(ckv_fetch_not_fetched(ticket, chunks, 8, &count) == CKV_OK && count == 0, "none left", p);
  ckv_fetch_ticket_free(ticket);

  // The time for chunks to begin passes immediately: no chunk is fetched.
  call.early_return_ns = 1;
  Require(ckv_fetch_begin(p->requester, &call, &ticket) == CKV_OK, "begin a fetch", p);
  Require(ckv_fetch_wait(ticket, TIMEOUT, &done, &report) == CKV_OK && done, "its end", p);
  Require(report.row_count == 0 && report.not_fetched_count == p->facts.chunk_count, "its report",
          p);
  Require(ckv_fetch_not_fetched(ticket, chunks, 2, &count) == CKV_OK, "the list", p);
  Require(count == p->facts.chunk_count && chunks[0] == 0 && chunks[1] == 1 && chunks[2] == 0,
          "its chunks", p);
  ckv_fetch_ticket_free(ticket);

  // Without any time, and cancelled.
  call.early_return_ns = 0;
  call.timeout_ns = 1;
  Require(ckv_fetch_begin(p->requester, &call, &ticket) == CKV_OK, "begin a fetch", p);
  Require(ckv_fetch_wait_layer(ticket, 0, TIMEOUT, &done) == CKV_DEADLINE_EXCEEDED && done,
          "no time", p);
  Require(ckv_fetch_not_fetched(ticket, chunks, 8, &count) == CKV_FAILED_PRECONDITION,
          "a list that is not settled", p);
  ckv_fetch_ticket_free(ticket);
  call.timeout_ns = TIMEOUT;
  Require(ckv_fetch_begin(p->requester, &call, &ticket) == CKV_OK, "begin a fetch", p);
  ckv_fetch_cancel(ticket);
  const ckv_status end = ckv_fetch_wait(ticket, TIMEOUT, &done, NULL);
  Require(done == 1 && (end == CKV_CANCELLED || end == CKV_OK), "the end of a cancelled fetch", p);
  ckv_fetch_ticket_free(ticket);
  free(rows);
}

// Mistakes that only a fleet's handles show.
static void Refused(program* p) {
  ckv_part part = {.struct_size = sizeof part, .corpus = p->corpus};
  ckv_segment segment = {.struct_size = sizeof segment, .part = &part};
  ckv_attend_call call = CallOf(p, p->facts.layers, &segment, 1);
  Require(ckv_attend(p->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "a layer beyond", p);
  call = CallOf(p, 0, &segment, 1);
  call.q_stride = p->facts.d_qk - 1;
  Require(ckv_attend(p->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "narrow queries", p);
  call.q_stride = 0;
  call.reserved = 1;
  Require(ckv_attend(p->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "reserved", p);
  call.reserved = 0;
  const uint32_t chunks[] = {0, p->facts.chunk_count};
  part.chunks = chunks;
  part.chunk_count = 2;
  Require(ckv_attend(p->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "a chunk beyond", p);
  part.chunk_count = 0;
  Require(ckv_attend(p->requester, &call, NULL) == CKV_INVALID_ARGUMENT, "no chunks", p);
  part.chunk_count = 1;
  call.timeout_ns = 1;
  Require(ckv_attend(p->requester, &call, NULL) == CKV_DEADLINE_EXCEEDED, "no time", p);
  ckv_ticket* ticket = NULL;
  Require(ckv_submit(p->requester, &call, NULL, &ticket) == CKV_INVALID_ARGUMENT && ticket == NULL,
          "a part submitted", p);
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: c_client DIRECTORY CORPUS FILE\n");
    return 2;
  }
  program p = {.out = fopen(argv[3], "wb")};
  Require(p.out != NULL, argv[3], NULL);
  const ckv_open_options options = {.struct_size = sizeof options,
                                    .directory = argv[1],
                                    .name = "c_client",
                                    .fabrics = "tcp,shm",
                                    .local_cache_bytes = UINT64_C(64) << 20,
                                    .call_threads = 2};
  Require(ckv_open(&options, &p.requester) == CKV_OK, "open", NULL);
  DescribeCorpus(&p, argv[2]);
  p.q = malloc(sizeof *p.q * kRows * p.facts.d_qk);
  p.o = malloc(sizeof *p.o * kRows * p.facts.d_v);
  p.m = malloc(sizeof *p.m * kRows);
  p.l = malloc(sizeof *p.l * kRows);
  AttendParts(&p);
  AttendContexts(&p, CKV_POLICY_ROUTE);
  AttendContexts(&p, CKV_POLICY_CACHE);
  Fetch(&p);
  FetchByTicket(&p);
  Refused(&p);
  Require(ckv_close(p.requester) == CKV_OK, "close", NULL);
  ckv_corpus_free(p.corpus);
  free(p.q);
  free(p.o);
  free(p.m);
  free(p.l);
  Require(fclose(p.out) == 0, argv[3], NULL);
  return 0;
}
