// Whether a name still names the file that a process has open.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ckv {

// A file, whatever its name is. No other file gets this identity while the file is open.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;  // 0 if the system did not tell

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// Returns the identity of an open file.
FileIdentity IdentityOf(int fd);
// Returns the identity of the file that has this name now.
FileIdentity IdentityAt(const std::string& path);

// Looks whether `path` still names `file`. Returns OK too if the system does not tell. It is one
// system call.
//   Unavailable         no file has the name, or another one has it.
absl::Status CheckNamed(const std::string& path, const FileIdentity& file);

}  // namespace ckv
