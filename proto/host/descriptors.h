// The descriptors that a process starts with, and how many it may have.

#pragma once

#include <cstdint>

namespace ckv {

// Opens /dev/null as descriptors 0, 1 and 2 if they are closed. Otherwise the next file or
// connection becomes one of them and receives what is written to stderr. Uses system calls only.
void OpenStandardDescriptors();

// Write it once in a program's main.cc. It runs OpenStandardDescriptors before libraries are
// initialized. A call in main would be too late: gRPC opens an eventfd when it is loaded.
#define CKV_OPEN_STANDARD_DESCRIPTORS_FIRST()                                        \
  __attribute__((section(".preinit_array"), used)) static void (*g_first_of_all)() = \
      ckv::OpenStandardDescriptors

struct DescriptorLimit {
  uint64_t before = 0;  // the soft limit as the process found it
  uint64_t now = 0;
};
// Raises the soft limit of descriptors to the hard one. A shell's soft limit is 1024, for programs
// that use select.
DescriptorLimit RaiseDescriptorLimit();

}  // namespace ckv
