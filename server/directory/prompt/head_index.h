// Finds the chunks that begin with a given head, the token hash of a chunk's first tokens
// (store/memory/token_hash.h), for prompts.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "proto/corpus.h"
#include "proto/ids.h"

namespace ckv {

// Not thread-safe. Takes some 40 bytes per chunk with a head.
class HeadIndex {
 public:
  // The position of a chunk in a corpus that was added.
  struct Place {
    const Corpus* corpus = nullptr;
    uint32_t ordinal = 0;
  };
  using Places = absl::InlinedVector<Place, 1>;
  using Heads = absl::flat_hash_map<uint64_t, Places>;

  // The corpus must not be destroyed before it is removed.
  void Add(const Corpus& corpus);
  void Remove(const Corpus& corpus);
  // Returns the heads of the tenant's own corpora, by the fingerprint of their model, or null if
  // there are none. Valid until the next change.
  const absl::flat_hash_map<ChunkId, Heads>* Find(const std::string& tenant) const;

 private:
  // By tenant and model, so that a search skips chunks of other tenants and models.
  absl::flat_hash_map<std::string, absl::flat_hash_map<ChunkId, Heads>> tables_;
};

// The limit of places that one Look visits, at some 50 ns each: the directory is locked meanwhile.
inline constexpr size_t kPlacesPerLookMax = 65'536;

// One search for the chunks of a prompt, in corpora that its tenant may read. Used by one thread.
class PromptSearch {
 public:
  // If `model` is unset, chunks of all models are found.
  PromptSearch(std::string_view tenant, const std::optional<ChunkId>& model)
      : tenant_(tenant), model_(model) {}

  // Adds the chunks of these heads. The index may change between two calls.
  void Look(const HeadIndex& index, std::span<const uint64_t> heads);
  PromptChunks Finish() && { return std::move(found_); }

 private:
  // The heads of the corpora that the tenant may read (I6), of one of the requested models.
  struct Table {
    ChunkId model;
    const HeadIndex::Heads& heads;
  };
  std::vector<Table> Tables(const HeadIndex& index) const;
  void TakeHead(const ChunkId& model, const HeadIndex::Places& places, size_t& looked);

  const std::string tenant_;
  const std::optional<ChunkId> model_;
  PromptChunks found_;
  // Whole records, so that a false record of a chunk hides no true one.
  using Record = std::tuple<ChunkId, ChunkId, uint32_t, uint64_t, uint64_t, uint64_t>;
  absl::flat_hash_set<Record> records_;  // records found
  absl::flat_hash_set<ChunkId> models_;  // models of found_
  absl::flat_hash_set<uint64_t> heads_;  // requested heads that chunks have
};

}  // namespace ckv
