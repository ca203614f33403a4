// Prints an explanation and an estimate of a corpus, a line of JSON each: c_advice DIRECTORY CORPUS

#include <stdio.h>
#include <stdlib.h>

#include "client/bindings/c/ckv.h"

static void Require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "c_advice: %s: %s\n", what, ckv_last_error(NULL));
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const ckv_open_options options = {.struct_size = sizeof options, .directory = argv[1]};
  ckv_requester* requester;
  ckv_corpus* corpus;
  Require(ckv_open(&options, &requester) == CKV_OK, "open");
  Require(ckv_resolve(requester, argv[2], CKV_TIMEOUT_DEFAULT, &corpus) == CKV_OK, "resolve");
  ckv_advice_call call = {
      .struct_size = sizeof call, .corpus = corpus, .query_rows = 16, .steps = 3};
  char* json = NULL;
  Require(ckv_explain(requester, &call, &json) == CKV_OK, "explain");
  puts(json);
  ckv_text_free(json);
  Require(ckv_estimate(requester, &call, &json) == CKV_OK, "estimate");
  puts(json);
  ckv_text_free(json);

  // The engine's prefills offer "local"; other positions make a fetch cost a splice.
  ckv_corpus_facts facts = {.struct_size = sizeof facts};
  Require(ckv_corpus_describe(corpus, &facts) == CKV_OK, "describe");
  for (int i = 0; i < 3; ++i)
    Require(ckv_report_prefill(requester, &facts, 1000, 500000000) == CKV_OK, "report");
  Require(ckv_report_prefill(requester, &facts, 0, 1) == CKV_INVALID_ARGUMENT, "no tokens");
  Require(ckv_report_prefill(requester, &facts, 1, UINT64_MAX) == CKV_INVALID_ARGUMENT, "ages");
  Require(ckv_report_prefill(requester, NULL, 1, 1) == CKV_INVALID_ARGUMENT, "no model");
  call.spliced = 1;
  Require(ckv_explain(requester, &call, &json) == CKV_OK, "explain");
  puts(json);
  ckv_text_free(json);
  call.spliced = 0;

  const uint32_t some[] = {1, 0};
  call.chunks = some;
  call.chunk_count = 2;
  call.cache_free_tokens = CKV_CACHE_FULL;
  Require(ckv_explain(requester, &call, &json) == CKV_OK, "explain");
  puts(json);
  ckv_text_free(json);
  const uint32_t wrong[] = {1, 1};
  call.chunks = wrong;
  Require(ckv_estimate(requester, &call, &json) == CKV_INVALID_ARGUMENT && json == NULL, "twice");
  Require(ckv_explain(requester, &call, &json) == CKV_INVALID_ARGUMENT && json == NULL, "twice");
  ckv_corpus_free(corpus);
  Require(ckv_close(requester) == CKV_OK, "close");
  return 0;
}
