// Where a ckvd listens that is told nothing, and where ckvctl looks for it: one truth for both.

#pragma once

#include <string_view>

namespace ckv {

// Of a process that is a requester, whatever else it is: it is what clients talk to.
inline constexpr std::string_view kDefaultRequesterAddress = "127.0.0.1:7311";
// Of a directory that is no requester.
inline constexpr std::string_view kDefaultDirectoryAddress = "127.0.0.1:7400";
// Of a holder that is nothing else.
inline constexpr std::string_view kDefaultHolderAddress = "127.0.0.1:7401";

}  // namespace ckv
