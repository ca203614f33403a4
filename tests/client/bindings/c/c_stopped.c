// Queries a corpus, waits for a line on stdin, by which time a holder is stopped, and queries
// again: a call that is cancelled, and a fetch with an early return for chunks that do not begin in
// time. Prints how many chunks it fetched of how many.
//
//   c_stopped DIRECTORY CORPUS

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/bindings/c/ckv.h"

#define TIMEOUT UINT64_C(30000000000)
#define EARLY_RETURN UINT64_C(300000000)

static void Require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "c_stopped: %s: %s\n", what, ckv_last_error(NULL));
  exit(1);
}

// A call over the whole corpus.
typedef struct question {
  ckv_part part;
  ckv_context* context;
  ckv_segment segment;
  ckv_attend_call call;
  uint16_t* q;
  float *o, m, l;
} question;

static void MakeQuestion(ckv_requester* requester, const ckv_corpus* corpus,
                         const ckv_corpus_facts* facts, question* made) {
  *made = (question){.part = {.struct_size = sizeof made->part, .corpus = corpus}};
  const ckv_context_spec spec = {.struct_size = sizeof spec,
                                 .parts = &made->part,
                                 .part_count = 1,
                                 .policy = CKV_POLICY_ROUTE};
  Require(ckv_context_open(requester, &spec, &made->context) == CKV_OK, "open a context");
  made->q = calloc(facts->d_qk, sizeof *made->q);
  made->o = calloc(facts->d_v, sizeof *made->o);
  made->segment = (ckv_segment){.struct_size = sizeof made->segment, .context = made->context};
  made->call = (ckv_attend_call){.struct_size = sizeof made->call,
                                 .row_count = 1,
                                 .q = made->q,
                                 .o = made->o,
                                 .m = &made->m,
                                 .l = &made->l,
                                 .segments = &made->segment,
                                 .segment_count = 1,
                                 .timeout_ns = TIMEOUT};
}

// The call waits for the stopped holder. A wait that times out leaves it in progress, and
// cancelling ends it.
static void GiveUp(ckv_requester* requester, question* requested) {
  ckv_ticket* ticket;
  int done = 1;
  Require(ckv_submit(requester, &requested->call, NULL, &ticket) == CKV_OK, "submit");
  Require(ckv_wait(ticket, 3000000, &done) == CKV_OK && done == 0, "wait for 3 ms");
  Require(ckv_wait(ticket, 20000000, &done) == CKV_OK && done == 0, "wait for 20 ms");
  Require(ckv_poll(ticket, &done) == CKV_OK && done == 0, "poll");
  ckv_cancel(ticket);
  Require(ckv_poll(ticket, &done) == CKV_CANCELLED && done == 1, "poll what is cancelled");
  Require(strcmp(ckv_status_name(CKV_CANCELLED), "CANCELLED") == 0, "its name");
  ckv_ticket_free(ticket);
  // A ticket that is freed without another poll.
  Require(ckv_submit(requester, &requested->call, NULL, &ticket) == CKV_OK, "submit");
  ckv_ticket_free(ticket);
  // A ticket whose own deadline passes.
  requested->call.timeout_ns = 50000000;
  Require(ckv_submit(requester, &requested->call, NULL, &ticket) == CKV_OK, "submit");
  Require(ckv_wait(ticket, TIMEOUT, &done) == CKV_DEADLINE_EXCEEDED && done == 1, "its deadline");
  ckv_ticket_free(ticket);
  ckv_context_close(requested->context);
  free(requested->q);
  free(requested->o);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const ckv_open_options options = {.struct_size = sizeof options, .directory = argv[1]};
  ckv_requester* requester;
  ckv_corpus* corpus;
  Require(ckv_open(&options, &requester) == CKV_OK, "open");
  Require(ckv_resolve(requester, argv[2], TIMEOUT, &corpus) == CKV_OK, "resolve");
  ckv_corpus_facts facts = {.struct_size = sizeof facts};
  Require(ckv_corpus_describe(corpus, &facts) == CKV_OK, "describe");
  const size_t layer_bytes = facts.token_count * facts.row_bytes,
               bytes = facts.layers * layer_bytes;
  uint8_t *want = malloc(bytes), *got = calloc(1, bytes);
  ckv_fetch_call call = {.struct_size = sizeof call,
                         .corpus = corpus,
                         .rows = want,
                         .rows_bytes = bytes,
                         .timeout_ns = TIMEOUT};
  Require(ckv_fetch(requester, &call, NULL) == CKV_OK, "fetch");
  question requested;
  MakeQuestion(requester, corpus, &facts, &requested);
  Require(ckv_attend(requester, &requested.call, NULL) == CKV_OK, "attend");
  puts("ready");
  fflush(stdout);
  Require(getchar() != EOF, "a line");

  call.rows = got;
  call.early_return_ns = EARLY_RETURN;
  ckv_fetch_ticket* ticket;
  Require(ckv_fetch_begin(requester, &call, &ticket) == CKV_OK, "begin");
  ckv_fetch_report report = {.struct_size = sizeof report};
  int done = 0;
  Require(ckv_fetch_wait_layer(ticket, 0, 0, &done) == CKV_OK, "look");
  Require(ckv_fetch_wait(ticket, TIMEOUT, &done, &report) == CKV_OK && done, "wait");
  uint32_t count = 0, token_count = 0, tokens = 0, first = 0;
  Require(ckv_fetch_not_fetched(ticket, &first, 1, &count) == CKV_OK, "list");
  Require(count == report.not_fetched_count, "the count");
  Require(count == 0 || first == report.chunk_count, "the first that is not fetched");
  for (uint32_t chunk = 0; chunk < report.chunk_count; ++chunk) {
    Require(ckv_corpus_chunks(corpus, chunk, chunk + 1, NULL, &token_count, NULL) == CKV_OK, "it");
    tokens += token_count;
  }
  Require(report.row_count == (uint64_t)tokens * facts.layers, "the rows");
  for (uint32_t layer = 0; layer < facts.layers; ++layer) {
    Require(memcmp(want + layer * layer_bytes, got + layer * layer_bytes,
                   (size_t)tokens * facts.row_bytes) == 0,
            "equal rows");
  }
  printf("%u %u\n", report.chunk_count, facts.chunk_count);
  ckv_fetch_ticket_free(ticket);
  GiveUp(requester, &requested);
  ckv_corpus_free(corpus);
  Require(ckv_close(requester) == CKV_OK, "close");
  free(want);
  free(got);
  return 0;
}
