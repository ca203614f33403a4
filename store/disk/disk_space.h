// The free space of the file system that a folder is on.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/health/facts.h"

namespace ckv {

// Returns the space that this process may use. All zero if the path is empty or statvfs fails.
DiskSpace DiskSpaceOf(const std::string& path);

// Returns whether the file system has space for another file of this many bytes. Inodes may run out
// before bytes do. Unset if the path is empty or statvfs fails.
std::optional<bool> HasSpaceForFile(const std::string& path, uint64_t bytes);

}  // namespace ckv
