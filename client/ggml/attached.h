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

// Immutable once others see it.
struct Attached {
  std::string corpus;
  std::string tenant;  // "" is the shared tenant
  // If set, the chunks must be those that it was made of (DigestOfChunks).
  std::optional<std::array<uint8_t, 32>> digest;
  uint32_t chunk_begin = 0, chunk_end = 0;  // ordinals; if both are 0, all chunks
  // The position of the first token. If unset, the last token stands right before position 0. Only
  // the distance of positions counts, so an engine that begins at 0 then sees them before its own.
  std::optional<int64_t> position;

  // Names all of it: two are the same if their keys are.
  std::string Key() const;
};

Attached AttachedBy(const CellReference& reference);

// All that one token attends so, in order of position. Each is there once.
using AttachedList = std::vector<std::shared_ptr<const Attached>>;

// Brings the list into its order, and drops what is there twice.
void SortAttached(AttachedList& list);

}  // namespace ckv::ggml
