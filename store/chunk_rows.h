// Reads a chunk's rows from memory or from its file, for a caller that reads them once: a cold
// chunk stays cold.
//
//   CKV_ASSIGN_OR_RETURN(const ckv::ChunkRows rows, store.OpenRows(locator));
//   for (uint32_t t = 0; t < rows.layout().tensor_count(); ++t) {
//     std::vector<std::byte> tensor(rows.layout().bytes(t));
//     CKV_RETURN_IF_ERROR(rows.Read(t, 0, rows.info().token_count(), absl::MakeSpan(tensor)));
//   }

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "store/disk/chunk_folder.h"
#include "store/memory/chunk_table.h"

namespace ckv {

class ChunkFiles;
class ChunkStore;

// Made by ChunkStore::OpenRows; the store must outlive it. Movable and thread-safe. While this
// object exists, a hot chunk is pinned, and a cold chunk's file remains readable even if the chunk
// is dropped.
class ChunkRows {
 public:
  const ChunkInfo& info() const;
  const Geometry& geometry() const;
  ChunkLayout layout() const { return {geometry(), info().token_count()}; }
  // Returns true if the rows are read from memory.
  bool hot() const { return pin_.held(); }

  // Copies the rows of `token_count` tokens of a tensor, starting at `token_begin`. `rows` must
  // have token_count x layout().row_bytes(tensor) bytes; another size ends the process. From a
  // file, reads and checks only the stripes that contain these tokens, and waits for the device.
  //   InvalidArgument     the chunk does not have this tensor or these tokens.
  //   DataLoss            the file is damaged: it was quarantined, and the chunk was dropped.
  //                       Nothing in `rows` is valid.
  //   Unavailable         the device fails; the chunk remains.
  absl::Status Read(uint32_t tensor, uint32_t token_begin, uint32_t token_count,
                    std::span<std::byte> rows) const;

 private:
  friend class ChunkStore;
  ChunkRows(ChunkFiles* files, ChunkLocator locator, ChunkPin pin)
      : files_(files), locator_(locator), pin_(std::move(pin)) {}
  ChunkRows(ChunkFiles* files, ChunkLocator locator, ChunkFileReader file)
      : files_(files), locator_(locator), file_(std::move(file)) {}

  absl::Status ReadFile(uint32_t tensor, uint32_t begin, uint32_t end,
                        std::span<std::byte> rows) const;

  ChunkFiles* files_;
  ChunkLocator locator_;
  ChunkPin pin_;
  std::optional<ChunkFileReader> file_;
};

}  // namespace ckv
