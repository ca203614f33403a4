// Makes rows lie where calls find a chunk's: in memory, and in no cache.

#pragma once

#include <cstddef>
#include <span>

namespace ckv {

// Takes `rows` out of every cache of this machine; what was written is written back. It takes some
// 10 ns for each 64 bytes. On processors that have no instruction for it, it does nothing: what is
// timed next is then rows that may lie in a cache.
void TakeOutOfCaches(std::span<const std::byte> rows);

}  // namespace ckv
