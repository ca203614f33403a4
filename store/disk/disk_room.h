// How much room the file system of a folder has.

#pragma once

#include <string>

#include "proto/health/facts.h"

namespace ckv {

// Returns the room that this process may use; all zero if the path is empty or cannot be looked at.
DiskRoom DiskRoomOf(const std::string& path);

}  // namespace ckv
