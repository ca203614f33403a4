// Where the chunks of `ckvctl corpus load` come from: safetensors files of rows, or a text that the
// reference engine prefills.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/worker_pool.h"
#include "client/engine.h"
#include "proto/geometry.h"
#include "store/chunk.h"

namespace ckv::ctl {

struct SourceChunk {
  ChunkInfo info;
  // The chunk's rows at a layer; valid while the source lives.
  std::function<std::span<const std::byte>(uint32_t layer)> rows;
};

// Movable; owns what the chunks' rows point into.
struct LoadSource {
  Geometry geometry;
  std::vector<SourceChunk> chunks;
  std::vector<std::shared_ptr<const void>> owned;

  uint64_t token_count() const;
  uint64_t row_bytes() const;  // of all chunks and layers
};

// The chunks of the files, in order. `chunk_tokens` 0 keeps one chunk a file. A file whose
// base_position continues the one before it is its child; any other starts a chain.
//   NotFound            no such file.
//   InvalidArgument     a file that is not one of rows, or of another geometry; says which and why.
absl::StatusOr<LoadSource> OpenRowFiles(const std::vector<std::string>& paths,
                                        uint32_t chunk_tokens, uint32_t token_count_max);

// The bytes of a file as tokens, at most `token_count_max` of them (0: all).
//   NotFound            no such file.
//   InvalidArgument     it is empty, or a folder.
absl::StatusOr<std::vector<int32_t>> ReadTextTokens(const std::string& path,
                                                    uint32_t token_count_max);

// Prefills `tokens` at position 0 and cuts them into chunks of `chunk_tokens`. The source keeps the
// engine.
//   Errors of Engine::Prefill.
absl::StatusOr<LoadSource> PrefillText(std::shared_ptr<const Engine> engine,
                                       std::span<const int32_t> tokens, uint32_t chunk_tokens,
                                       WorkerPool& pool, PrefillProgress progress);

}  // namespace ckv::ctl
