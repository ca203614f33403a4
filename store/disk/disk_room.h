// How much room the file system of a folder has.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/health/facts.h"

namespace ckv {

// Returns the room that this process may use; all zero if the path is empty or cannot be looked at.
DiskRoom DiskRoomOf(const std::string& path);

// Whether the file system has room for one more file of this many bytes. Inodes may run out before
// bytes do. Unset if the path is empty or cannot be looked at.
std::optional<bool> HasRoomForFile(const std::string& path, uint64_t bytes);

}  // namespace ckv
