// Rows of chunks that lie here, and which chunks of a context they are.

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

// A chunk's rows of all layers at their canonical positions, checked. Nobody writes them any more.
// They live as long as anyone has them.
class NearRows {
 public:
  virtual ~NearRows() = default;
  // Rows of layer l < geometry.layers: [token_count][row_bytes], 64-byte aligned.
  virtual std::span<const std::byte> layer(uint32_t l) const = 0;
  // Whether they may still be attended. Rows of a holder no longer may once it found them damaged
  // or dropped them. Asked for each chunk of each call: it takes nanoseconds.
  virtual bool current() const { return true; }
};

// Rows that lie in this process or on this host already, so that nothing is pulled. Implemented by
// who has them: the holder of the same process. Thread-safe.
class NearSource {
 public:
  virtual ~NearSource() = default;
  // Returns the rows of a chunk if they are here and the corpus' tenant may read them, else null.
  // Does not wait.
  virtual std::shared_ptr<const NearRows> Find(const Corpus& corpus, uint32_t chunk) = 0;
  // Copies chunks of a corpus to where Find finds them, and announces them to others. `chunks` are
  // ordinals.
  //   Any error           not all of them were copied; they are pulled instead.
  virtual absl::Status Copy(const std::shared_ptr<const Corpus>& corpus,
                            const std::vector<uint32_t>& chunks, Instant deadline) = 0;
};

// The near rows of one context: an entry for each of its chunks, in the order of the tree. An entry
// is null if the chunk is not near. Immutable; a change makes another table.
using NearTable = std::vector<std::shared_ptr<const NearRows>>;

}  // namespace ckv
