#include "client/call/rotation_cache.h"

#include <utility>

namespace ckv {

const RopeRotation& RotationCache::For(const Geometry& geometry, int64_t offset) {
  for (const Entry& entry : entries_) {
    if (entry.offset == offset && entry.d_rope == geometry.d_rope &&
        entry.params == geometry.rope) {
      return entry.rotation;
    }
  }
  Entry entry = {geometry.rope, geometry.d_rope, offset,
                 RopeRotation(geometry.rope, geometry.d_rope, -offset)};
  if (entries_.size() < kRotationCountMax) {
    entries_.push_back(std::move(entry));
    return entries_.back().rotation;
  }
  next_ = (next_ + 1) % kRotationCountMax;
  entries_[next_] = std::move(entry);
  return entries_[next_].rotation;
}

}  // namespace ckv
