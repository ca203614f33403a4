// The descriptors that a process begins with, and how many it may have.

#pragma once

#include <cstdint>

namespace ckv {

// Opens /dev/null as descriptors 0, 1 and 2 if they are closed. Otherwise the next file or
// connection becomes one of them, and takes what is written to stderr. Call it first in main.
void OpenStandardDescriptors();

struct DescriptorLimit {
  uint64_t before = 0;  // the soft limit as the process found it
  uint64_t now = 0;
};
// Raises the soft limit of descriptors to the hard one. A shell's soft limit is 1024, for programs
// that use select.
DescriptorLimit RaiseDescriptorLimit();

}  // namespace ckv
