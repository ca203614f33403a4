// The limits of a daemon's gRPC server: messages, connections, threads and memory.

#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>

namespace ckv {

// `message_bytes_max` is of one message, either way. `thread_count_max` counts the threads of all
// calls.
void SetServerLimits(int message_bytes_max, uint32_t thread_count_max,
                     grpc::ServerBuilder& builder);

}  // namespace ckv
