// Checks of where a directory keeps its state.

#pragma once

#include <string>
#include <vector>

#include "server/daemon/config.h"

namespace ckv {

// Adds an error for each contradiction of directory.path, directory.store and the roles.
void CheckDirectoryStore(const Config& config, std::vector<std::string>& errors);

}  // namespace ckv
