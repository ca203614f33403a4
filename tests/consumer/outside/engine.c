// Attends one token's query rows at layer 0 of a whole corpus, in C: engine DIRECTORY CORPUS
#include <ckv/ckv.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(ckv_status status) {
  fprintf(stderr, "engine: %s: %s\n", ckv_status_name(status), ckv_last_error(NULL));
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const ckv_open_options options = {.struct_size = sizeof options, .directory = argv[1]};
  ckv_requester* requester;
  ckv_status status = ckv_open(&options, &requester);
  if (status != CKV_OK) return fail(status);
  ckv_corpus* corpus;
  status = ckv_resolve(requester, argv[2], CKV_TIMEOUT_DEFAULT, &corpus);
  if (status != CKV_OK) return fail(status);
  ckv_corpus_facts facts = {.struct_size = sizeof facts};
  status = ckv_corpus_describe(corpus, &facts);
  if (status != CKV_OK) return fail(status);

  const uint32_t rows = 16;  // one token of a model with 16 heads
  uint16_t* q = malloc(sizeof *q * rows * facts.d_qk);
  for (size_t i = 0; i < (size_t)rows * facts.d_qk; ++i) q[i] = 0x3f80;  // bf16 ones
  float* o = malloc(sizeof *o * rows * facts.d_v);
  float m[16], l[16];
  const ckv_part part = {.struct_size = sizeof part, .corpus = corpus};
  const ckv_segment segment = {.struct_size = sizeof segment, .part = &part};
  const ckv_attend_call call = {.struct_size = sizeof call,
                                .row_count = rows,
                                .q = q,
                                .o = o,
                                .m = m,
                                .l = l,
                                .segments = &segment,
                                .segment_count = 1};
  status = ckv_attend(requester, &call, NULL);
  if (status != CKV_OK) return fail(status);
  printf("%u chunks, m %.9g, l %.9g, o[0] %.9g\n", facts.chunk_count, m[0], l[0], o[0]);
  free(q);
  free(o);
  ckv_corpus_free(corpus);
  status = ckv_close(requester);
  return status == CKV_OK ? 0 : fail(status);
}
