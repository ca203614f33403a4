// Rows of chunks on this host, and the table of them for a context.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// A chunk's verified tensors, with rows at their canonical positions. They are immutable, and live
// as long as any reference to them.
class LocalRows {
 public:
  virtual ~LocalRows() = default;
  // Returns tensor t < geometry.tensor_count(): [token_count][tensor_row_bytes(t)], 64-byte
  // aligned.
  virtual std::span<const std::byte> tensor(uint32_t t) const = 0;
  // Returns the rows of layer l < geometry.layers.
  std::span<const std::byte> layer(uint32_t l) const { return tensor(l); }
  // Whether the rows may still be attended. A holder's rows may not once the holder found them
  // damaged or dropped them. Called for each chunk of each call, so it takes nanoseconds.
  virtual bool current() const { return true; }
};

// Rows that are already in this process or on this host, so that they need not be fetched.
// Implemented by their owner: the holder in the same process. Thread-safe.
class LocalRowSource {
 public:
  virtual ~LocalRowSource() = default;
  // Returns the rows of a chunk if they are here and the corpus's tenant may read them, else null.
  // Does not wait.
  virtual std::shared_ptr<const LocalRows> Find(const Corpus& corpus, uint32_t chunk) = 0;
  // Copies chunks of a corpus to where Find finds them, and announces the copies to the directory.
  // `chunks` are ordinals.
  //   Any error           some were not copied; fetch those instead.
  virtual absl::Status Copy(const std::shared_ptr<const Corpus>& corpus,
                            const std::vector<uint32_t>& chunks, Instant deadline) = 0;
};

// The local rows of one context: an entry for each of its chunks, in the order of the merge tree.
// An entry is null if the chunk is not cached locally. Immutable; a change makes another table.
using LocalRowTable = std::vector<std::shared_ptr<const LocalRows>>;

}  // namespace ckv
