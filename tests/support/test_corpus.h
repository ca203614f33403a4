// Random corpora for tests: chunks with known rows, put into a real chunk table.
//
//   TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5, 64, 0, 130}, /*seed=*/1);
//   for (const TestChunk& chunk : corpus.chunks) ASSERT_OK(PutChunk(table, corpus.geometry,
//   chunk)); Corpus published = corpus.Publish("gpl", "", {{HolderId{"a"}}});

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/status.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "store/chunk_store.h"
#include "store/memory/chunk.h"
#include "store/memory/chunk_id.h"
#include "tests/support/random_rows.h"

namespace ckv::test {

// Small, and unlike DeepSeek in every width, so that a hard-wired 576 or 512 shows.
inline Geometry TestGeometry(uint32_t layers = 3, uint32_t d_qk = 96, uint32_t d_v = 64) {
  Geometry geometry;
  geometry.model = "test/tiny";
  geometry.revision = "r1";
  geometry.layers = layers;
  geometry.d_qk = d_qk;
  geometry.d_v = d_v;
  geometry.d_rope = d_qk - d_v;
  geometry.softmax_scale = 0.125f;
  return geometry;
}

// The geometry with index keys: 4 heads of 16 values, of which 8 are rotated.
inline Geometry WithIndex(Geometry geometry, IndexDtype dtype = IndexDtype::kFp8) {
  geometry.index = IndexShape{.dim = 16, .heads = 4, .dtype = dtype, .d_rope = 8, .scale = 0.125f};
  return geometry;
}

struct TestChunk {
  ChunkInfo info;
  // Tensors, exactly what the store holds: bf16 [layers][token_count x d_qk], then the index keys
  // of each layer, if there are any.
  std::vector<std::vector<uint16_t>> layers;
};

struct TestCorpus {
  Geometry geometry;
  std::vector<TestChunk> chunks;  // one chain, in order of positions

  // The corpus as a directory would have it; chunk i is held by holders[i % holders.size()].
  Corpus Publish(std::string name, std::string tenant,
                 const std::vector<std::vector<HolderId>>& holders) const {
    Corpus corpus;
    corpus.name = std::move(name);
    corpus.tenant = std::move(tenant);
    corpus.geometry = geometry;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const ChunkInfo& info = chunks[i].info;
      corpus.chunks.emplace_back(PlacementFacts{.id = info.id,
                                                .parent = info.parent,
                                                .token_count = info.token_count(),
                                                .position = info.position,
                                                .holders = holders[i % holders.size()]});
    }
    return corpus;
  }

  // bf16 [tokens][d_qk] of one layer of the chunks [begin, end), one after another.
  std::vector<uint16_t> Rows(uint32_t layer, size_t begin, size_t end) const {
    std::vector<uint16_t> rows;
    for (size_t i = begin; i < end; ++i) {
      rows.insert(rows.end(), chunks[i].layers[layer].begin(), chunks[i].layers[layer].end());
    }
    return rows;
  }
  std::vector<uint16_t> Rows(uint32_t layer) const { return Rows(layer, 0, chunks.size()); }
};

// A chain of chunks with the given token counts. Rows and token ids are drawn from `seed`; the
// geometry's dtype must be bf16.
inline TestCorpus MakeTestCorpus(const Geometry& geometry,
                                 const std::vector<uint32_t>& token_counts, uint32_t seed) {
  std::mt19937 rng(seed);
  const ChunkId fingerprint = ModelFingerprint(geometry);
  TestCorpus corpus{.geometry = geometry, .chunks = {}};
  ChunkId parent;
  uint64_t position = 0;
  for (const uint32_t token_count : token_counts) {
    TestChunk chunk;
    chunk.info.parent = parent;
    chunk.info.position = position;
    for (uint32_t t = 0; t < token_count; ++t) {
      chunk.info.token_ids.push_back(static_cast<int32_t>(rng() % 100'000));
    }
    chunk.info.id = ComputeChunkId(fingerprint, parent, position, chunk.info.token_ids);
    for (uint32_t t = 0; t < geometry.tensor_count(); ++t) {
      chunk.layers.push_back(t < geometry.layers
                                 ? RandomBf16(size_t{token_count} * geometry.d_qk, rng)
                                 : RandomIndexKeys(*geometry.index, token_count, rng));
      const std::vector<uint16_t>& rows = chunk.layers.back();
      chunk.info.tensor_checksums.push_back(ChecksumOf(std::as_bytes(std::span(rows))));
    }
    parent = chunk.info.id;
    position += token_count;
    corpus.chunks.push_back(std::move(chunk));
  }
  return corpus;
}

// Puts one chunk as a client's put would: announced, written, checked, published.
inline absl::Status PutChunk(ChunkTable& table, const Geometry& geometry, const TestChunk& chunk) {
  CKV_ASSIGN_OR_RETURN(ChunkWriter writer, table.Begin(chunk.info, geometry));
  for (uint32_t t = 0; t < geometry.tensor_count(); ++t)
    CKV_RETURN_IF_ERROR(writer.Write(t, 0, std::as_bytes(std::span(chunk.layers[t]))));
  CKV_ASSIGN_OR_RETURN(Chunk whole, std::move(writer).Finish());
  return table.Insert(std::move(whole));
}

// The same through a store: on disk, where it has one.
inline absl::Status PutChunk(ChunkStore& store, const Geometry& geometry, const TestChunk& chunk) {
  CKV_ASSIGN_OR_RETURN(ChunkPut put, store.Begin(chunk.info, geometry));
  for (uint32_t t = 0; t < geometry.tensor_count(); ++t)
    CKV_RETURN_IF_ERROR(put.Write(t, 0, std::as_bytes(std::span(chunk.layers[t]))));
  return std::move(put).Finish();
}

// A copy in memory only, as a replica keeper makes.
inline absl::Status PutCopy(ChunkStore& store, const Geometry& geometry, const TestChunk& chunk,
                            std::string_view tenant = "") {
  CKV_ASSIGN_OR_RETURN(ChunkWriter writer, store.BeginCopy(chunk.info, geometry, tenant));
  for (uint32_t t = 0; t < geometry.tensor_count(); ++t)
    CKV_RETURN_IF_ERROR(writer.Write(t, 0, std::as_bytes(std::span(chunk.layers[t]))));
  CKV_ASSIGN_OR_RETURN(Chunk whole, std::move(writer).Finish());
  return store.InsertCopy(std::move(whole), tenant);
}

// `place` is a table or a store.
template <typename Place>
absl::Status PutCorpus(Place& place, const TestCorpus& corpus) {
  for (const TestChunk& chunk : corpus.chunks) {
    CKV_RETURN_IF_ERROR(PutChunk(place, corpus.geometry, chunk));
  }
  return absl::OkStatus();
}

}  // namespace ckv::test
