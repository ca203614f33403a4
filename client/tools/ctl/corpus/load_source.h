// Chunk sources of `ckvctl corpus load`: all chunks are known before any row is read, and are read
// one at a time. This file has the source for row files. prefill_source.h has the one for tokens
// that the reference engine prefills, npy_source.h for arrays of rows, llama_source.h for llama.cpp
// sequence states.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "client/publish/text_overlap.h"
#include "proto/corpus.h"
#include "proto/extra_keys.h"
#include "proto/geometry.h"
#include "store/corpus/cutter.h"
#include "store/formats/import.h"
#include "store/memory/chunk.h"

namespace ckv::ctl {

// How token sequences are cut into chunks (store/corpus/cutter.h).
enum class CutPolicy : uint8_t { kFixed, kDocument, kContent };
struct CutOptions {
  CutPolicy policy = CutPolicy::kFixed;
  // The size for kFixed, or the average for kContent. If 0, one chunk, or an average of 2048.
  uint32_t chunk_tokens = 0;
  uint32_t chunk_min = 0;  // for kContent; if 0, a quarter of the average
  // The largest chunk of kContent or kDocument. If 0, four times the average, or 8192.
  uint32_t chunk_max = 0;
  // If true, no chunk has a parent, and each chunk's rows were computed alone at position 0. The
  // chunk id depends on the tokens only, so corpora share the chunk at any position.
  bool standalone = false;
  TenantKey key = {};  // the key of chunk ids; the zero key makes plain ids
  // The corpus to extend, or null (FilePlanner), and the function that returns the tokens of its
  // chunks.
  const Corpus* extended = nullptr;
  ReadTokens read_tokens = {};
  // Called with the planned chunks before any is prefilled. An error ends the load.
  std::function<absl::Status(const ChunkSource&)> before_prefill = {};
};
//   InvalidArgument     a size that the policy does not use, or an error of ValidateCutSizes.
absl::Status ValidateCut(const CutOptions& options);
// Cuts `tokens`, which must be one document if the policy is kDocument. The options must be valid.
std::vector<TokenRange> Cut(std::span<const int32_t> tokens, const CutOptions& options);

// Returns the size at which `corpus` is cut: the size of its chunks that are followed by another
// chunk. If these differ, returns `otherwise`. If no chunk is followed, each text is one chunk:
// returns the larger of the longest size and `otherwise`, so that the texts fit. If `standalone` is
// set and several chunks have the longest size, returns that size.
uint32_t ChunkTokensOf(const Corpus& corpus, bool standalone, uint32_t otherwise);

// Runs NewChunks and CheckNoTextTwice (client/publish) over `cut.extended`, and adds advice for
// `corpus load` to their errors.
absl::StatusOr<std::vector<uint32_t>> NewToCorpus(const CutOptions& cut, const ChunkSource& source);

// Plans chunks and refuses duplicates: a corpus contains each chunk once (I1).
class ChunkPlanner {
 public:
  // Appends to `chunks`, which must outlive the planner.
  ChunkPlanner(const Geometry& geometry, const TenantKey& key, std::vector<PlannedChunk>* chunks);
  // Adds the chunk of `tokens`. Its id is the parent of the next chunk. `extra_keys` count from the
  // chunk's first token. `origin` names the file and the line.
  //   InvalidArgument     the chunk is already planned; names its origin. Or it has too many extra
  //                       keys.
  absl::Status Add(const ChunkId& parent, uint64_t position, std::span<const int32_t> tokens,
                   std::span<const ExtraKey> extra_keys, const std::string& origin);

  struct Name {
    ChunkId id;
    VerificationTag verification_tag;
  };
  Name NameOf(const ChunkId& parent, uint64_t position, std::span<const int32_t> tokens,
              std::span<const ExtraKey> extra_keys) const;

 private:
  const ChunkId fingerprint_;
  const TenantKey key_;
  std::vector<PlannedChunk>& chunks_;
  std::map<ChunkId, std::string> origins_;
};

// Plans the chunks of row files, in order. A file whose first token follows the last token of the
// previous file is its child. Any other file starts a chain. When extending, a file whose first
// chunk is already in the corpus keeps its position there. A file that starts at the corpus' end
// continues it.
class FilePlanner {
 public:
  // If `token_count_max` is not 0, takes at most that many tokens. Appends to `chunks`, which must
  // outlive the planner.
  FilePlanner(const Geometry& geometry, const CutOptions& cut, uint32_t token_count_max,
              std::vector<PlannedChunk>* chunks);
  // Returns the token ranges of the chunks of the next file, which begins at `base_position`.
  // `extra_keys` are the file's, sorted, counted from its first token.
  //   InvalidArgument     A chunk is a duplicate, or the file cannot be standalone. Or no chunk of
  //                       the extended corpus ends where the file begins, or several do. Names the
  //                       path.
  absl::StatusOr<std::vector<TokenRange>> Add(const std::string& path, uint64_t base_position,
                                              std::span<const int32_t> token_ids,
                                              std::span<const ExtraKey> extra_keys = {});
  // Whether the token limit is reached.
  bool full() const { return tokens_left_ == 0; }

 private:
  absl::StatusOr<ChunkId> ParentAt(const std::string& path, uint64_t position,
                                   std::span<const int32_t> first_tokens,
                                   std::span<const ExtraKey> extra_keys) const;
  absl::StatusOr<ChunkId> EndAt(const std::string& path, uint64_t position) const;

  const CutOptions cut_;
  ChunkPlanner planner_;
  std::vector<PlannedChunk>& chunks_;
  uint64_t tokens_left_;
  ChunkId parent_;
  uint64_t next_position_ = 0;
};

// Reads a chunk's rows into memory that the chunk owns. `read` writes the rows of one tensor,
// layout.bytes(tensor) bytes, to `to`. The rows sent therefore match the checksums taken, even if
// the file changes.
//   ResourceExhausted   there is not enough memory.
//   the first error of `read`.
absl::Status HoldRows(const ChunkLayout& layout,
                      absl::FunctionRef<absl::Status(uint32_t tensor, std::byte* to)> read,
                      SourceChunk& chunk);

// Opens the chunks of row files, in order. A path that is a folder must have an index
// (store/formats/safetensors_index.h). If standalone, each file is one chunk of base_position 0.
// Rows are read chunk by chunk, and only those of chunks that were handed out are in memory.
//   NotFound            no such file.
//   InvalidArgument     a file is not a row file, has another geometry, or cannot be standalone;
//                       names the file and the cause.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenRowFiles(const std::vector<std::string>& paths,
                                                          const CutOptions& cut,
                                                          uint32_t token_count_max);

}  // namespace ckv::ctl
