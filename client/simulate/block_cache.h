// The prefix cache of one instance: which blocks of prompts it still has.

#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>

#include "absl/container/flat_hash_map.h"

namespace ckv {

// Blocks are ids: equal ids are equal rows, as in a chain of hashes. Evicts the block unused for
// longest. Not thread-safe.
class BlockCache {
 public:
  // Returns how many leading blocks of a prompt are cached.
  size_t Match(std::span<const uint64_t> blocks) const;
  // Adds a prompt's blocks, or marks them as used. The first block counts as used last, so that a
  // chain loses its end first.
  void Use(std::span<const uint64_t> blocks);
  // Evicts until there are at most `count` blocks.
  void Shrink(size_t count);
  size_t size() const { return of_id_.size(); }

 private:
  std::list<uint64_t> order_;  // used last first
  absl::flat_hash_map<uint64_t, std::list<uint64_t>::iterator> of_id_;
};

}  // namespace ckv
