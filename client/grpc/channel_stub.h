// Makes the gRPC channels of all control connections: limits, keep-alive, reconnection.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "proto/base/clock.h"

namespace ckv {

// Limits of one message. A requester's messages carry query rows and partials. A directory's carry
// a corpus of 2^19 chunks, about 110 bytes each. A holder's carry at most the token ids of one
// chunk (4 MiB) or 1 MiB of rows.
inline constexpr int kMessageBytesMax = 64 << 20;
inline constexpr int kHolderMessageBytesMax = 8 << 20;
// The limit of row bytes in one message of a put, a read or a fetch.
inline constexpr size_t kMessageRowsBytesMax = size_t{1} << 20;

// Either end detects a silent connection within 2 + 1 s.
inline constexpr Duration kKeepAlivePeriod = std::chrono::seconds(2);
inline constexpr Duration kKeepAliveTimeout = std::chrono::seconds(1);

// The time limit of a control call without a deadline.
inline constexpr Duration kControlTimeoutMax = std::chrono::seconds(30);

// The minimum time between two look-ups of a host's name; gRPC's default is 30 s. A process with a
// new address is found after this time. A look-up follows only a failed connection, so a healthy
// fleet makes none.
inline constexpr Duration kNameLookUpMin = std::chrono::seconds(1);

// Keeps gRPC initialized from the first call until the process ends. Otherwise gRPC shuts down with
// its last channel or server, and joins a thread of its own. That thread may be in a poll of 10 s
// (gRPC 1.51, after megabytes were written), which would delay the exit. MakeChannel calls this.
// Also call it before you make a server.
void KeepGrpcUp();

// Makes a channel without using the network. The first call connects. A broken connection is
// re-established, with a pause of 100 ms that doubles up to 1 s. The name in `address` is looked up
// again, at most once per kNameLookUpMin. Proxies in the environment are ignored.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           int message_bytes_max = kMessageBytesMax);
// The same, but the channel never shares a connection with other channels of the process to this
// address.
std::shared_ptr<grpc::Channel> MakeOwnChannel(const std::string& address);

// If the last attempt to connect failed, ends the pause and tries again at once. Use it if the peer
// is expected to be back. Does not wait.
void HurryChannel(grpc::Channel& channel);

}  // namespace ckv
