// The default addresses of a ckvd, used by ckvd and by ckvctl alike, and the limit of a list of
// directories.

#pragma once

#include <cstddef>
#include <string_view>

namespace ckv {

// A process that is a requester, alone or with other roles: clients talk to it.
inline constexpr std::string_view kDefaultRequesterAddress = "127.0.0.1:7311";
// A directory that is not a requester.
inline constexpr std::string_view kDefaultDirectoryAddress = "127.0.0.1:7400";
// A process that is only a holder.
inline constexpr std::string_view kDefaultHolderAddress = "127.0.0.1:7401";

// The most addresses in a list of directories: one leads, and a fleet has 2 to 5 of them.
inline constexpr size_t kDirectoryCountMax = 8;

}  // namespace ckv
