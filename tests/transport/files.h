// Descriptors for tests: small files to pass on, and how many are open.

#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>

#include "gtest/gtest.h"
#include "transport/socket.h"

namespace ckv::test {

// A file in memory that says `text`.
inline UniqueFd FileOf(const std::string& text) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(pwrite(fd.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return fd;
}

inline std::string TextOf(int fd) {
  char text[64];
  const ssize_t bytes = pread(fd, text, sizeof(text), 0);
  EXPECT_GE(bytes, 0);
  return {text, static_cast<size_t>(bytes > 0 ? bytes : 0)};
}

// Of this process, the one that reads the list included.
inline size_t OpenFdCount() {
  const std::filesystem::directory_iterator list("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(list), end(list)));
}

}  // namespace ckv::test
