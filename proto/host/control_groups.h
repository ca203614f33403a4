// The limits of the control groups that a process is in, of version 1 and version 2.

#pragma once

#include <cstdint>
#include <string>

namespace ckv {

// A limit that is not set.
inline constexpr uint64_t kNoGroupLimit = UINT64_MAX;

// The least of each limit, from the process' own group up to the highest one that can be seen.
struct GroupLimits {
  uint64_t memory_bytes = kNoGroupLimit;
  std::string memory_file;                 // its file, for people; empty without a limit
  uint64_t process_count = kNoGroupLimit;  // threads count, too
  std::string process_file;
  double processors = 0;  // processors' worth of time; 0 without a limit
};

// Reads the limits of `process` ("self", "812") below `root`: "" for this machine, or a folder with
// a tree like its own. A file that is missing or makes no sense counts as no limit.
GroupLimits ReadGroupLimits(const std::string& root, const std::string& process);

// Returns the bytes that this process may use: of the machine's memory or of its groups, whichever
// is less. `*file` becomes the file of that limit, empty if it is the machine's memory. 0 if
// nothing is known.
uint64_t UsableMemoryBytes(std::string* file);

// Returns how many processors this process may use at once, at least 1. Its groups may give it less
// time than the processors have that it may run on. Part of a processor counts as one.
uint32_t UsableProcessors();

}  // namespace ckv
