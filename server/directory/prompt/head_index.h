// Finds the chunks that begin with a head (store/memory/token_print.h), for prompts.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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
  // Returns the places of chunks with this head, or null. It is valid until the next change.
  const Places* Find(uint64_t head) const;

 private:
  absl::flat_hash_map<uint64_t, Places> places_;
};

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
  bool MayRead(const Corpus& corpus);

  const std::string tenant_;
  const std::optional<ChunkId> model_;
  PromptChunks found_;
  absl::flat_hash_set<ChunkId> ids_;     // those that were found
  absl::flat_hash_set<uint64_t> heads_;  // that chunks have and that were looked for
};

}  // namespace ckv
