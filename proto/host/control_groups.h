// The limits of the control groups of a process, of cgroup versions 1 and 2.

#pragma once

#include <cstdint>
#include <string>

namespace ckv {

// A limit that is not set.
inline constexpr uint64_t kNoGroupLimit = UINT64_MAX;

// The lowest of each limit, from the process' own group up to the topmost visible one.
struct GroupLimits {
  uint64_t memory_bytes = kNoGroupLimit;
  std::string memory_file;                 // the file of that limit; empty without a limit
  uint64_t process_count = kNoGroupLimit;  // threads count, too
  std::string process_file;
  double processors = 0;  // processors' worth of time; 0 without a limit
};

// Reads the limits of `process` ("self", "812"). `root` is "" for this machine, or a folder with a
// copy of its /proc and /sys. A missing or invalid file counts as no limit.
GroupLimits ReadGroupLimits(const std::string& root, const std::string& process);

// Returns the bytes that this process may use: the machine's memory or the limit of its groups,
// whichever is less. Returns 0 if neither is known. `*file` becomes the file of that limit, empty
// for the machine's memory.
uint64_t UsableMemoryBytes(std::string* file);

// Returns how many processors this process may use at once, at least 1. That is its affinity mask,
// or the CPU quota of its groups if that is less, rounded up.
uint32_t UsableProcessors();

}  // namespace ckv
