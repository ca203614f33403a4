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
#include "client/ggml/attached.h"

namespace ckv::ggml {

// Whether a row of bf16 values may be a reference. Reads its first four values; no row without a
// NaN passes. The row has at least four values.
bool MayBeReference(std::span<const std::byte> row);

// Keeps the references it has read: a row it knows costs a hash of it, 0.2 us. One thread at a
// time.
class ReferenceReader {
 public:
  // Rows that are kept, 1.2 KB each: 256 references, as CorpusContexts keeps contexts, in 64
  // layers. Beyond them one is forgotten, and read anew when it comes: 10 us.
  static constexpr size_t kRowCountMax = 256 * 64;
  static constexpr size_t kAttachedCountMax = 1024;

  // Returns the chunks that a cell of this layer stands for. The same reference in another layer
  // gives the same object, as long as both are kept.
  //   DataLoss            the row has a NaN and is no reference, or it was changed.
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
