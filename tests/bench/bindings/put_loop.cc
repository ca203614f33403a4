// Puts chunks as ckvctl loads them, by client/publish. tests/bench/bindings_figures.py compares
// Python's puts with it. A chunk is in memory already and has 2,048 tokens and 27 layers: 64 MB.
//
//   put_loop DIRECTORY CORPUS
//
// Each line on stdin is a number that no chunk had before. For each, puts one chunk at the end of
// the corpus and prints the nanoseconds that it took.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "client/publish/chunk_source.h"
#include "client/publish/publisher.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "store/memory/chunk_id.h"
#include "tests/support/named_geometry.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 2048;

// The checksums are part of the work: a load makes them, too.
SourceChunk ChunkOf(const Geometry& geometry, const std::vector<std::byte>& rows, int32_t number) {
  SourceChunk chunk;
  chunk.info.token_ids.assign(kTokens, number);
  chunk.info.id = ComputeChunkId(ModelFingerprint(geometry), ChunkId(), 0, chunk.info.token_ids);
  const size_t bytes = size_t{kTokens} * geometry.row_bytes();
  chunk.rows = [&rows, bytes](uint32_t layer) {
    return std::span(rows).subspan(layer * bytes, bytes);
  };
  for (uint32_t layer = 0; layer < geometry.layers; ++layer)
    chunk.info.tensor_checksums.push_back(ChecksumOf(chunk.rows(layer)));
  return chunk;
}

void Run(const char* directory, const char* corpus) {
  Publisher publisher(directory, Clock::Real());
  const auto soon = [] { return Clock::Real()->Now() + std::chrono::seconds(60); };
  const auto end = publisher.EndOf(corpus, "", soon());
  CKV_CHECK(end.ok());
  const Geometry& geometry = end->geometry;
  const std::vector<std::byte> rows(size_t{kTokens} * geometry.token_bytes(), std::byte{1});
  int number = 0;
  while (std::scanf("%d", &number) == 1) {
    const Instant begin = Clock::Real()->Now();
    MemorySource chunks(geometry);
    chunks.Add(ChunkOf(geometry, rows, number));
    const auto done = publisher.Extend({.corpus = corpus}, chunks, soon());
    CKV_CHECK(done.ok() && done->added_count == 1);
    std::printf("%lld\n", static_cast<long long>((Clock::Real()->Now() - begin).count()));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace ckv::bench

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  ckv::bench::Run(argv[1], argv[2]);
  return 0;
}
