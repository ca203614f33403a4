// Chunks to be put on holders: described before their rows are read, and read one at a time.

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

// A chunk with its rows, as sent to holders.
struct SourceChunk {
  ChunkInfo info;
  // The chunk's rows of a tensor; valid while `owned` lives.
  std::function<std::span<const std::byte>(uint32_t tensor)> rows;
  // The memory that contains the rows. Any thread may release it, which frees the memory.
  std::shared_ptr<const void> owned;
};

// A chunk as it is known before its rows are read. Its id identifies its inputs.
struct PlannedChunk {
  ChunkId id;
  ChunkId parent;
  uint64_t position = 0;
  uint32_t token_count = 0;
  VerificationTag verification_tag = {};  // zero if its id is plain
  TokenHash token_hash = {};              // for prompt matching; unset if there are too few tokens
  ExtraKeys extra_keys = {};              // as ChunkInfo::extra_keys
};

// One thread at a time. It holds the token ids of all chunks, 4 bytes per token, and rows as
// described by each implementation. Chunks that it returned may outlive it.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  const Geometry& geometry() const { return geometry_; }
  const std::vector<PlannedChunk>& chunks() const { return chunks_; }
  uint64_t token_count() const;
  uint64_t row_bytes() const;  // bytes of all chunks and tensors

  // The token ids of one chunk, valid while the source exists.
  virtual std::span<const int32_t> TokensOf(uint32_t ordinal) const = 0;
  // Returns one chunk with its rows and their checksums. Chunks may be read in any order, and
  // again.
  virtual absl::StatusOr<SourceChunk> Read(uint32_t ordinal) = 0;
  // Checks that the source's files are unchanged since it was opened. Called before the chunks are
  // published.
  //   InvalidArgument     a file changed; names it.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }

 protected:
  ChunkSource() = default;
  // Sets the id and the verification tag of a chunk's description to the planned ones.
  void NameAsPlanned(uint32_t ordinal, ChunkInfo& info) const;

  Geometry geometry_;
  std::vector<PlannedChunk> chunks_;
};

// Chunks whose rows are in memory already.
class MemorySource final : public ChunkSource {
 public:
  explicit MemorySource(const Geometry& geometry) { geometry_ = geometry; }
  // Prompts find the chunk by `token_hash` (store/memory/token_hash.h), or never if it is unset.
  void Add(SourceChunk chunk, const TokenHash& token_hash = {});
  std::span<const int32_t> TokensOf(uint32_t ordinal) const override {
    return held_.at(ordinal).info.token_ids;
  }
  absl::StatusOr<SourceChunk> Read(uint32_t ordinal) override { return held_.at(ordinal); }

 private:
  std::vector<SourceChunk> held_;
};

}  // namespace ckv
