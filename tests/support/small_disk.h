// A disk of 1 MiB, for tests of what happens when it is full.

#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <string>

namespace ckv::test {

// Mounts a tmpfs of 1 MiB on the folder, in a namespace in which this process then lives. It works
// as root, or as root of a user namespace where those are allowed; errno says why not.
inline bool MountSmallDisk(const std::string& path) {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return mount("tmpfs", path.c_str(), "tmpfs", 0, "size=1m") == 0;
}

}  // namespace ckv::test
