// Checks at the start whether the process may have the threads and descriptors of a daemon.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/daemon/config.h"

namespace ckv {

// Returns how many threads a serving daemon needs, with some to spare, because gRPC starts more
// when calls arrive.
uint32_t ThreadsAtStart(const Config& config);

// Starts as many threads at once as the daemon will need, and ends them.
//   ResourceExhausted   names the limit of threads or descriptors that is too low, and what is
//                       needed.
absl::Status CheckStartLimits(const Config& config);

// From now on, an unhandled shortage of memory, threads or descriptors ends the process with exit
// code 1 and one line that names the limit. Without it, the process aborts.
void EndShortagesWithALine();

// Describes the limits of processes and threads of this process, for a message.
std::string ThreadLimits();

}  // namespace ckv
