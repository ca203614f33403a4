// How every control connection is made: limits, keep-alive, reconnection.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "proto/clock.h"

namespace ckv {

// One message. A requester's carry query rows and partials; a directory's a corpus of 2^19 chunks
// (about 110 bytes each); a holder's at most the token ids of one chunk (4 MiB) or 1 MiB of rows.
inline constexpr int kMessageBytesMax = 64 << 20;
inline constexpr int kHolderMessageBytesMax = 8 << 20;

// A connection that went silent is found in 2 + 1 s, at either end.
inline constexpr Duration kKeepAlivePeriod = std::chrono::seconds(2);
inline constexpr Duration kKeepAliveTimeout = std::chrono::seconds(1);

// A control call that names no deadline ends after this.
inline constexpr Duration kControlTimeoutMax = std::chrono::seconds(30);

// From the first call on, gRPC stays up until the process ends. It goes down with its last channel
// or server otherwise, and that joins a thread of its own that may sit in a poll of 10 s (gRPC
// 1.51, after megabytes were written): exits would be late by as much. MakeChannel calls it, and so
// must who makes a server.
void KeepGrpcUp();

// Never touches the network: the connection is made by the first call, and again after it broke,
// with a pause of 100 ms that doubles up to 1 s. Proxies of the environment are not used.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           int message_bytes_max = kMessageBytesMax);

}  // namespace ckv
