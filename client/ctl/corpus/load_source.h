// Gives the chunks of `ckvctl corpus load`: known before a row is read, and read one at a time.
// This file has files of rows; prefill_source.h has tokens that the reference engine prefills,
// npy_source.h arrays of rows, llama_source.h sequence states of llama.cpp.

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

// How runs of tokens become chunks (store/corpus/cutter.h).
enum class CutPolicy : uint8_t { kFixed, kDocument, kContent };
struct CutOptions {
  CutPolicy policy = CutPolicy::kFixed;
  // The size for kFixed, or the average for kContent. If 0, one chunk, or an average of 2048.
  uint32_t chunk_tokens = 0;
  uint32_t chunk_min = 0;  // for kContent; if 0, a quarter of the average
  // The largest chunk of kContent or kDocument. If 0, four times the average, or 8192.
  uint32_t chunk_max = 0;
  // If true, no chunk has a parent, and each chunk's rows were made alone at position 0. Its id
  // depends on its tokens only, so corpora share it at any position.
  bool standalone = false;
  TenantKey key = {};  // by which chunk ids are made; the zero key makes plain ones
  // The corpus that is extended, or null (FilePlanner), and the function that returns the tokens of
  // its chunks.
  const Corpus* extended = nullptr;
  AskForTokens ask_for_tokens = {};
  // Called with the planned chunks before any is prefilled. An error ends the load.
  std::function<absl::Status(const ChunkSource&)> before_prefill = {};
};
//   InvalidArgument     a size that the policy has no use for, or ValidateCutSizes.
absl::Status ValidateCut(const CutOptions& options);
// Cuts `tokens`, which are one document if the policy is kDocument. The options are valid.
std::vector<TokenRange> Cut(std::span<const int32_t> tokens, const CutOptions& options);

// Returns the size at which `corpus` is cut: that of its chunks which are followed by another. If
// none is followed, texts are one chunk each, and fit in what is returned. If the corpus has
// several sizes, returns `otherwise`.
uint32_t ChunkTokensOf(const Corpus& corpus, bool standalone, uint32_t otherwise);

// NewChunks and CheckNoTextTwice (client/publish) over `cut.extended`, with advice for who loads
// files.
absl::StatusOr<std::vector<uint32_t>> NewToCorpus(const CutOptions& cut, const ChunkSource& source);

// Plans chunks, and sees to it that none comes twice: a corpus has each once (I1).
class ChunkPlanner {
 public:
  // `chunks` is appended to; it outlives the planner.
  ChunkPlanner(const Geometry& geometry, const TenantKey& key, std::vector<PlannedChunk>* chunks);
  // The chunk of `tokens`; its id is the next one's parent. `extra_keys` count from its first
  // token. `origin` names the file, and the line.
  //   InvalidArgument     it is there already; says where. Or it has too many extra keys.
  absl::Status Add(const ChunkId& parent, uint64_t position, std::span<const int32_t> tokens,
                   std::span<const ExtraKey> extra_keys, const std::string& origin);

  struct Name {
    ChunkId id;
    ChunkSeal seal;
  };
  Name NameOf(const ChunkId& parent, uint64_t position, std::span<const int32_t> tokens,
              std::span<const ExtraKey> extra_keys) const;

 private:
  const ChunkId fingerprint_;
  const TenantKey key_;
  std::vector<PlannedChunk>& chunks_;
  std::map<ChunkId, std::string> origins_;
};

// Plans the chunks of files of rows, in order. A file whose first token follows the last token of
// the previous file is its child. Any other file starts a chain. When extending, a file whose first
// chunk is already in the corpus keeps its position there. A file that starts at the corpus' end
// continues it.
class FilePlanner {
 public:
  // If `token_count_max` is not 0, no more tokens than that are taken. `chunks` is appended to and
  // outlives the planner.
  FilePlanner(const Geometry& geometry, const CutOptions& cut, uint32_t token_count_max,
              std::vector<PlannedChunk>* chunks);
  // Returns the tokens of each chunk of the next file, which begins at `base_position`.
  // `extra_keys` are the file's, sorted, counted from its first token.
  //   InvalidArgument     A chunk comes twice, or the file cannot be standalone. Or no chunk of the
  //                       extended corpus ends where it begins, or several do. Names the path.
  absl::StatusOr<std::vector<TokenRange>> Add(const std::string& path, uint64_t base_position,
                                              std::span<const int32_t> token_ids,
                                              std::span<const ExtraKey> extra_keys = {});
  // Whether no more tokens are taken.
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

// Reads a chunk's rows into memory of the chunk's own: `read` puts those of a layer, `layer_bytes`
// bytes, to `to`. So the rows that are sent have the checksums that were taken, whatever happens to
// the file.
//   ResourceExhausted   there is not so much memory.
//   the first error of `read`.
absl::Status HoldRows(uint32_t layers, size_t layer_bytes,
                      absl::FunctionRef<absl::Status(uint32_t layer, std::byte* to)> read,
                      SourceChunk& chunk);

// The chunks of files of rows, in order; a path that is a folder has an index
// (store/formats/safetensors_index.h). Standalone: each file is one chunk of base_position 0. Rows
// are read chunk by chunk, and only those of chunks that are given out are in memory.
//   NotFound            no such file.
//   InvalidArgument     a file that is not one of rows, or of another geometry, or that cannot be
//                       standalone; says which and why.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenRowFiles(const std::vector<std::string>& paths,
                                                          const CutOptions& cut,
                                                          uint32_t token_count_max);

}  // namespace ckv::ctl
