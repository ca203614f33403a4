// The rows of one chunk, read from one holder and checked.

#pragma once

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/publish/chunk_copy.h"
#include "store/memory/chunk.h"

namespace ckv::ctl {

// Rows of a tensor, from this byte of it on; each tensor's in order, at most 1 MiB.
using TakeRows = absl::FunctionRef<absl::Status(uint32_t tensor, uint64_t offset_bytes,
                                                std::span<const std::byte> rows)>;

// Reads the chunk that `info` is, tensor by tensor, a part in memory at a time. Rows that `take`
// got hold only if this returns OK: a tensor's checksum is known right at its end.
//   DataLoss            a tensor's rows do not have their checksum, or the holder found them
//                       damaged.
//   Internal            the holder sent rows that were not due, or too few.
//   the first error of `take`, or the holder's. All name the holder.
absl::Status ReadChunkRows(const HolderCalls& calls, const ChunkInfo& info, TakeRows take);

}  // namespace ckv::ctl
