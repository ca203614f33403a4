// A folder that a command fills with its results, and the plots in it.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv::ctl {

// Makes the folder that --dir names, if need be.
//   FailedPrecondition  it cannot be made, or is a file.
absl::Status MakeFolder(const std::string& folder);

// Runs the Python script at `path`, which draws with matplotlib, and waits for it. Returns false if
// this machine has no Python with matplotlib: the script ends with kNoMatplotlibExit then.
//   Internal            the script failed; its reason is on stderr.
absl::StatusOr<bool> DrawWithPython(const std::string& path);
inline constexpr int kNoMatplotlibExit = 3;
// The line for a user whose `page` was not drawn.
std::string NotDrawnText(const std::string& page, const std::string& script);

}  // namespace ckv::ctl
