// The version of this build.

#pragma once

#include <string_view>

namespace ckv {

// Returns "0.1.0", the version in CMakeLists.txt.
std::string_view Version();
// Returns "3bb4fde8a1c2", followed by "-dirty" if the tree had uncommitted changes. Returns "" if
// the build was not made from a git checkout.
std::string_view Commit();

}  // namespace ckv
