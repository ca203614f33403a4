// Reads the references among the cells of an engine's cache (store/formats/reference_cell.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/bindings/ggml/attached.h"

namespace ckv::ggml {

// Returns true if a row of bf16 values may be a reference. Reads its first four values, which it
// must have. A row without a NaN is never accepted.
bool MayBeReference(std::span<const std::byte> row);

// Keeps the references that it has read: a known row costs a hash of it, 0.2 us. Used by one thread
// at a time.
class ReferenceReader {
 public:
  // The most rows to keep, 1.2 KB each: 256 references, as CorpusContexts keeps contexts, in 64
  // layers. Beyond that, one row is dropped. Reading a dropped row again takes 10 us.
  static constexpr size_t kRowCountMax = 256 * 64;
  static constexpr size_t kAttachedCountMax = 1024;

  // Returns the chunks that a cell of this layer represents. The same reference in another layer
  // returns the same object, while both are kept.
  //   DataLoss            the row has a NaN and is no reference, was changed, or is a reference of
  //                       another layer.
  //   FailedPrecondition  a reference of another version.
  absl::StatusOr<std::shared_ptr<const Attached>> Read(std::span<const std::byte> row,
                                                       uint32_t layer);

 private:
  struct Known {
    std::shared_ptr<const Attached> attached;
    uint32_t layer = 0;
  };
  absl::flat_hash_map<std::string, Known> rows_;  // by the row's bytes
  absl::flat_hash_map<std::string, std::shared_ptr<const Attached>> attached_;  // by their keys
};

}  // namespace ckv::ggml
