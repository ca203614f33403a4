// The version of this build, as CMakeLists.txt has it.

#pragma once

#include <string_view>

namespace ckv {

// "0.1.0".
std::string_view Version();

}  // namespace ckv
