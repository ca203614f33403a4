#include "client/simulate/block_cache.h"

namespace ckv {

size_t BlockCache::Match(std::span<const uint64_t> blocks) const {
  size_t count = 0;
  while (count < blocks.size() && of_id_.contains(blocks[count])) ++count;
  return count;
}

void BlockCache::Use(std::span<const uint64_t> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto [at, fresh] = of_id_.try_emplace(blocks[i]);
    if (fresh) {
      order_.push_front(blocks[i]);
      at->second = order_.begin();
    } else {
      order_.splice(order_.begin(), order_, at->second);
    }
  }
}

void BlockCache::Shrink(size_t count) {
  while (of_id_.size() > count) {
    of_id_.erase(order_.back());
    order_.pop_back();
  }
}

}  // namespace ckv
