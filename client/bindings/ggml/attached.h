// Chunks that a sequence of an engine attends although its cache has no rows of them.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/formats/reference_cell.h"

namespace ckv::ggml {

// Immutable once it is shared.
struct Attached {
  std::string corpus;
  std::string tenant;  // "" is the shared tenant
  // If set, the digest that the chunks must have (DigestOfChunks).
  std::optional<std::array<uint8_t, 32>> digest;
  uint32_t chunk_begin = 0, chunk_end = 0;  // ordinals; if both are 0, all chunks
  // The position of the first token. If unset, the last token is right before position 0. Only the
  // distance between positions counts, so an engine that begins at 0 then sees these tokens before
  // its own.
  std::optional<int64_t> position;

  // Returns a string of all fields: two objects are the same if their keys are equal.
  std::string Key() const;
};

Attached AttachedBy(const CellReference& reference);

// All chunks that one token attends this way, in order of position, without duplicates.
using AttachedList = std::vector<std::shared_ptr<const Attached>>;

// Sorts the list into that order, and removes duplicates.
void SortAttached(AttachedList& list);

}  // namespace ckv::ggml
