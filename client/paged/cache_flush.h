// Flushes rows from the processor caches, so that they are in memory only, as calls find a chunk's
// rows.

#pragma once

#include <cstddef>
#include <span>

namespace ckv {

// Removes `rows` from every cache of this machine; modified lines are written back. Takes some 10
// ns per 64 bytes, and is complete on return. Does nothing on processors without an instruction for
// it: a measurement that follows may then read cached rows.
void FlushFromCaches(std::span<const std::byte> rows);

}  // namespace ckv
