// Whether a process may have the threads and descriptors that a daemon needs, before it needs them.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/daemon/config.h"

namespace ckv {

// Returns how many threads a daemon has once it serves, with some to spare: gRPC starts more when
// calls come.
uint32_t ThreadsAtStart(const Config& config);

// Starts as many threads at once as the daemon will need, and ends them.
//   ResourceExhausted   names the limit of threads or descriptors that is too low, and what is
//                       needed.
absl::Status CheckStartLimits(const Config& config);

// Ends the process with exit code 1 and one line that names the limit, if a shortage is not
// handled. Without it, a thread or memory that is not there aborts the process.
void EndShortagesWithALine();

// Returns the limits of processes and threads that this process is under, for people.
std::string ThreadLimits();

}  // namespace ckv
