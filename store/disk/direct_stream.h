// Reads a file from the device, past the system's memory of files: several pieces under way at once
// by io_uring, O_DIRECT.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace ckv {

// Under way at once, and of this size: 4 MiB of memory for the time of a call. A device of 7 GB/s
// that answers in 100 us has 0.7 MB under way.
inline constexpr uint32_t kDirectPieceCount = 8;
inline constexpr uint64_t kDirectPieceBytes = uint64_t{512} << 10;

// `take` is given [offset, offset + bytes) of the file, piece by piece in order; it blocks what
// comes after. `fd` is open for reading. Nothing is under way any more when it returns.
//   Unimplemented       this system, file system or file allows no such reads; nothing was taken.
//   DataLoss            the file ends before.
//   Unavailable         the device fails.
//   and what `take` says.
absl::Status StreamDirectly(int fd, uint64_t offset, uint64_t bytes,
                            absl::FunctionRef<absl::Status(std::span<const std::byte>)> take);

// Whether the system has these bytes of the file in memory, where they are faster to copy.
bool IsCached(int fd, uint64_t offset, uint64_t bytes);

}  // namespace ckv
