// The version of this build.

#pragma once

#include <string_view>

namespace ckv {

// "0.1.0", as CMakeLists.txt has it.
std::string_view Version();
// "3bb4fde8a1c2", with "-dirty" if the build had changes beside it; "" if it was made outside of a
// git checkout.
std::string_view Commit();

}  // namespace ckv
