// Fetches a corpus whole, waits for a line on stdin, and fetches it again by a ticket that hands
// back chunks which do not begin in time. Prints how many chunks it fetched of how many.
//
//   c_hand_back DIRECTORY CORPUS

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/ckv.h"

#define TIMEOUT UINT64_C(30000000000)
#define HAND_BACK UINT64_C(300000000)

static void Require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "c_hand_back: %s: %s\n", what, ckv_last_error(NULL));
  exit(1);
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
  puts("ready");
  fflush(stdout);
  Require(getchar() != EOF, "a line");

  call.rows = got;
  call.hand_back_ns = HAND_BACK;
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
  ckv_corpus_free(corpus);
  Require(ckv_close(requester) == CKV_OK, "close");
  free(want);
  free(got);
  return 0;
}
