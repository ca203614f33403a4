// Keeps the rotations of rows that are fetched.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/rope.h"
#include "proto/geometry.h"

namespace ckv {

// Keeps rotations by the offsets in use, because making one takes memory and sines. Not
// thread-safe.
class RotationCache {
 public:
  static constexpr size_t kRotationCountMax = 64;
  // Returns the rotation by -offset. It is valid until the next call.
  const RopeRotation& For(const Geometry& geometry, int64_t offset);

 private:
  struct Entry {
    RopeParams params;
    uint32_t d_rope;
    int64_t offset;
    RopeRotation rotation;
  };
  std::vector<Entry> entries_;
  size_t next_ = 0;  // the entry to replace next
};

}  // namespace ckv
