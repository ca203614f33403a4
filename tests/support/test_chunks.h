// Small chunks with rows drawn from a seed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/status.h"
#include "proto/geometry.h"
#include "store/formats/import.h"
#include "store/memory/chunk.h"

namespace ckv {

// Rows of 10 values: 20 bytes, so that layers do not end on a 64-byte boundary by themselves.
inline Geometry SmallGeometry(uint32_t layers = 3) {
  Geometry geometry;
  geometry.model = "test/small";
  geometry.revision = "1";
  geometry.layers = layers;
  geometry.d_qk = 10;
  geometry.d_v = 8;
  geometry.d_rope = 2;
  geometry.softmax_scale = 0.25f;
  return geometry;
}

// The same with index keys of 8 bytes.
inline Geometry IndexedGeometry(uint32_t layers = 3) {
  Geometry geometry = SmallGeometry(layers);
  geometry.index = IndexShape{
      .dim = 4, .heads = 2, .dtype = IndexDtype::kFp8, .rope_style = RopeStyle::kNone, .scale = 1};
  return geometry;
}

struct SmallChunk {
  ChunkInfo info;
  std::vector<std::vector<std::byte>> layers;  // the rows of each tensor
};

inline SmallChunk MakeSmallChunk(const Geometry& geometry, uint32_t token_count, uint32_t seed,
                                 const ChunkId& parent = {}, uint64_t position = 0) {
  std::mt19937 rng(seed);
  SmallChunk chunk;
  std::vector<int32_t> tokens(token_count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() >> 1);
  chunk.layers.resize(geometry.tensor_count());
  for (uint32_t t = 0; t < geometry.tensor_count(); ++t) {
    chunk.layers[t].resize(size_t{token_count} * geometry.tensor_row_bytes(t));
    for (std::byte& byte : chunk.layers[t]) byte = static_cast<std::byte>(rng());
  }
  chunk.info = DescribeChunk(geometry, parent, position, tokens, {0, token_count},
                             [&](uint32_t layer) { return std::span(chunk.layers[layer]); });
  return chunk;
}

// Writes every layer in pieces of `piece_bytes` and finishes.
inline absl::StatusOr<Chunk> WriteSmallChunk(ChunkWriter writer, const SmallChunk& chunk,
                                             size_t piece_bytes = 64) {
  for (uint32_t layer = 0; layer < chunk.layers.size(); ++layer) {
    const std::span<const std::byte> bytes = chunk.layers[layer];
    for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
      const size_t piece = std::min(piece_bytes, bytes.size() - at);
      CKV_RETURN_IF_ERROR(writer.Write(layer, at, bytes.subspan(at, piece)));
    }
  }
  return std::move(writer).Finish();
}

}  // namespace ckv
