// Whether a name still names the file that a process has open.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ckv {

// Identifies a file independently of its name. No other file gets this identity while it is open.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;  // 0 if unknown

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// Returns the identity of an open file.
FileIdentity IdentityOf(int fd);
// Returns the identity of the file that has this name now.
FileIdentity IdentityAt(const std::string& path);

// Checks that `path` still names `file`, by one system call. Returns OK if that cannot be found
// out.
//   Unavailable         no file has the name, or another file has it.
absl::Status CheckNamed(const std::string& path, const FileIdentity& file);

}  // namespace ckv
