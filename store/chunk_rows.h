// A chunk's rows where they lie, in memory or in its file, for whoever reads them once: a cold
// chunk stays cold.
//
//   CKV_ASSIGN_OR_RETURN(const ckv::ChunkRows rows, store.OpenRows(locator));
//   std::vector<std::byte> layer(rows.layer_bytes());
//   for (uint32_t l = 0; l < rows.geometry().layers; ++l) {
//     CKV_RETURN_IF_ERROR(rows.Read(l, 0, rows.info().token_count(), absl::MakeSpan(layer)));
//   }

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "store/chunk_folder.h"
#include "store/chunk_table.h"

namespace ckv {

class ChunkStore;

// Movable; the store must outlive it. A hot chunk is pinned meanwhile, and a cold one's file stays
// readable even if the chunk is dropped. Thread-safe.
class ChunkRows {
 public:
  const ChunkInfo& info() const;
  const Geometry& geometry() const;
  uint64_t layer_bytes() const { return uint64_t{info().token_count()} * geometry().row_bytes(); }
  bool hot() const { return pin_.held(); }

  // Tokens [begin, begin + count) of a layer, count x row_bytes; those of a file are checked, by
  // the stripes that have them, and stripes without any are not read.
  //   InvalidArgument     outside the chunk.
  //   DataLoss            its file is damaged: it was quarantined, and the chunk is gone from here.
  //                       Nothing of `rows` is valid.
  //   Unavailable         the device fails; the chunk stays.
  absl::Status Read(uint32_t layer, uint32_t token_begin, uint32_t token_count,
                    std::span<std::byte> rows) const;

 private:
  friend class ChunkStore;
  ChunkRows(ChunkStore* store, ChunkLocator locator, ChunkPin pin)
      : store_(store), locator_(locator), pin_(std::move(pin)) {}
  ChunkRows(ChunkStore* store, ChunkLocator locator, ChunkFileReader file)
      : store_(store), locator_(locator), file_(std::move(file)) {}

  absl::Status ReadFile(uint32_t layer, uint32_t begin, uint32_t end,
                        std::span<std::byte> rows) const;

  ChunkStore* store_;
  ChunkLocator locator_;
  ChunkPin pin_;
  std::optional<ChunkFileReader> file_;
};

}  // namespace ckv
