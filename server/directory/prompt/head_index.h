// Finds the chunks that begin with a head (store/memory/token_print.h), for prompts.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "proto/corpus.h"
#include "proto/ids.h"

namespace ckv {

// Not thread-safe. Some 40 bytes a chunk with a head.
class HeadIndex {
 public:
  // A chunk of a corpus that was added.
  struct Place {
    const Corpus* corpus = nullptr;
    uint32_t ordinal = 0;
  };
  using Places = absl::InlinedVector<Place, 1>;

  // The corpus must outlive its removal.
  void Add(const Corpus& corpus);
  void Remove(const Corpus& corpus);
  // Returns the places of chunks with this head in the tenant's own corpora, or null. It is valid
  // until the next change.
  const Places* Find(const std::string& tenant, uint64_t head) const;

 private:
  // By tenant, so that nobody's search goes through the chunks of others.
  absl::flat_hash_map<std::string, absl::flat_hash_map<uint64_t, Places>> places_;
};

// Places of one head that a search looks at. A chunk may be in many corpora.
inline constexpr size_t kPlacesPerHeadMax = 4 * kChunksPerHeadMax;

// One search for the chunks of a prompt, in corpora that its tenant may read. One thread.
class PromptSearch {
 public:
  // If `model` is unset, chunks of all models are found.
  PromptSearch(std::string_view tenant, const std::optional<ChunkId>& model)
      : tenant_(tenant), model_(model) {}

  // Adds the chunks of these heads. The index may change between two calls.
  void Look(const HeadIndex& index, std::span<const uint64_t> heads);
  PromptChunks Finish() && { return std::move(found_); }

 private:
  using Readable = absl::flat_hash_map<const Corpus*, bool>;
  void TakeHead(const HeadIndex::Places& places, Readable& readable);
  // Whether it has the model that is asked for. Corpora that the tenant may not read are not looked
  // up (I6).
  bool HasModel(const Corpus& corpus);

  const std::string tenant_;
  const std::optional<ChunkId> model_;
  PromptChunks found_;
  // Whole records: one that lies about a chunk hides no true one.
  using Record = std::tuple<ChunkId, ChunkId, uint32_t, uint64_t, uint64_t, uint64_t>;
  absl::flat_hash_set<Record> records_;  // those that were found
  absl::flat_hash_set<uint64_t> heads_;  // that chunks have and that were looked for
};

}  // namespace ckv
