// Chunks on their way to holders: known before a row is read, and read one at a time.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "store/memory/chunk.h"

namespace ckv {

// A chunk with its rows, as it goes to holders.
struct SourceChunk {
  ChunkInfo info;
  // The chunk's rows at a layer; valid while `owned` lives.
  std::function<std::span<const std::byte>(uint32_t layer)> rows;
  // The memory that the rows lie in. It may go on any thread; the memory is given back then.
  std::shared_ptr<const void> owned;
};

// A chunk as it is known before its rows are read: its id names its inputs.
struct PlannedChunk {
  ChunkId id;
  ChunkId parent;
  uint64_t position = 0;
  uint32_t token_count = 0;
  ChunkSeal seal = {};        // zero if its id is plain
  TokenPrint print = {};      // prompts find it by this; unset if it has too few tokens
  ExtraKeys extra_keys = {};  // as ChunkInfo::extra_keys
};

// One thread at a time. It holds the token ids of all chunks, 4 bytes a token, and rows as each
// kind says. Chunks it gave out need it no longer.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  const Geometry& geometry() const { return geometry_; }
  const std::vector<PlannedChunk>& chunks() const { return chunks_; }
  uint64_t token_count() const;
  uint64_t row_bytes() const;  // bytes of all chunks and layers

  // The token ids of one chunk; valid while the source lives.
  virtual std::span<const int32_t> TokensOf(uint32_t ordinal) const = 0;
  // The rows of one chunk, and their checksums; in any order, and again.
  virtual absl::StatusOr<SourceChunk> Read(uint32_t ordinal) = 0;
  // Checks that the source's files are unchanged since it was opened. Called before the chunks are
  // published.
  //   InvalidArgument     a file changed; names it.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }

 protected:
  ChunkSource() = default;
  // Gives the description of a chunk the id and the seal that were planned for it.
  void NameAsPlanned(uint32_t ordinal, ChunkInfo& info) const;

  Geometry geometry_;
  std::vector<PlannedChunk> chunks_;
};

// Chunks whose rows are in memory already.
class MemorySource final : public ChunkSource {
 public:
  explicit MemorySource(const Geometry& geometry) { geometry_ = geometry; }
  // Prompts find the chunk by `print` (store/memory/token_print.h); never, if it is unset.
  void Add(SourceChunk chunk, const TokenPrint& print = {});
  std::span<const int32_t> TokensOf(uint32_t ordinal) const override {
    return held_.at(ordinal).info.token_ids;
  }
  absl::StatusOr<SourceChunk> Read(uint32_t ordinal) override { return held_.at(ordinal); }

 private:
  std::vector<SourceChunk> held_;
};

}  // namespace ckv
