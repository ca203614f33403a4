// The blocks of an engine's paged cache, as the place of a fetch's rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "attention/backend.h"
#include "client/bindings/c/ckv_fetch.h"
#include "client/calls.h"

namespace ckv::c {

// Guards the writes of one fetch, which end at once when it is closed. Thread-safe.
class WriteFence {
 public:
  // Runs `write`, unless the fence is closed.
  //   Cancelled           it is closed.
  //   else                errors of `write`.
  absl::Status Write(absl::FunctionRef<absl::Status()> write) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns once no write runs; none begins any more.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

class BlockPlace {
 public:
  // Reads a place of `token_count` tokens of `layer_count` layers. It copies the table and the
  // layers' addresses. `row_bytes` are those of a whole row.
  //   InvalidArgument     as in ckv_fetch.h.
  absl::Status Take(const ckv_block_place* place, uint64_t token_count, uint32_t layer_count,
                    uint32_t row_bytes, MemoryKind memory);

  // Copies those of the `count` rows of one layer to the cache that the place takes. The first is
  // of the token `token` of the call. `stream` is needed for memory of a device, and is waited for.
  //   Internal            the device failed.
  absl::Status Write(uint32_t layer, uint64_t token, const RowView& rows,
                     ComputeStream* stream) const;

 private:
  absl::Status WriteBlocks(uint32_t layer, uint64_t row, const RowView& rows) const;

  std::vector<std::byte*> layers_;
  std::vector<uint32_t> table_;
  uint32_t block_rows_ = 0, block_count_ = 0, row_bytes_ = 0;
  uint64_t block_stride_bytes_ = 0, table_begin_ = 0, token_begin_ = 0, token_end_ = 0;
  MemoryKind memory_ = MemoryKind::kHost;
};

}  // namespace ckv::c
