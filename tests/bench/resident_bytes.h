// Memory that this process has, for benchmarks that report bytes a thing.

#pragma once

#include <malloc.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace ckv {

// Resident memory in bytes, after free memory was returned to the system.
inline double ResidentBytes() {
  malloc_trim(0);
  std::ifstream status("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  status >> size >> resident;
  return double(resident) * double(sysconf(_SC_PAGESIZE));
}

}  // namespace ckv
