// Reads a file from the device, past the system's page cache, with several reads under way at once
// (io_uring, O_DIRECT).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace ckv {

// Reads under way at once, and the size of each: 4 MiB of memory for the time of a call. A device
// of 7 GB/s that answers in 100 us needs 0.7 MB under way.
inline constexpr uint32_t kDirectBlockCount = 8;
inline constexpr uint64_t kDirectBlockBytes = uint64_t{512} << 10;

// Gives `take` the bytes [offset, offset + bytes) of the file, block by block in order. `fd` is
// open for reading. If `take` fails, its error is returned and no more is read. No read is under
// way when the call returns.
//   Unimplemented       the system, file system or file allows no direct reads; nothing was taken.
//   DataLoss            the file ends before.
//   Unavailable         the device fails.
absl::Status StreamDirectly(int fd, uint64_t offset, uint64_t bytes,
                            absl::FunctionRef<absl::Status(std::span<const std::byte>)> take);

// Returns whether these bytes of the file are in the page cache, where they are faster to copy.
bool IsCached(int fd, uint64_t offset, uint64_t bytes);

}  // namespace ckv
