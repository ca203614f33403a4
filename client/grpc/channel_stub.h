// Makes every control connection: limits, keep-alive, reconnection.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "proto/base/clock.h"

namespace ckv {

// Limits of one message. A requester's carry query rows and partials. A directory's carry a corpus
// of 2^19 chunks, about 110 bytes each. A holder's carry at most the token ids of one chunk (4 MiB)
// or 1 MiB of rows.
inline constexpr int kMessageBytesMax = 64 << 20;
inline constexpr int kHolderMessageBytesMax = 8 << 20;
// Rows in one message of a put, a read or a fetch.
inline constexpr size_t kMessageRowsBytesMax = size_t{1} << 20;

// A connection that went silent is detected in 2 + 1 s, at either end.
inline constexpr Duration kKeepAlivePeriod = std::chrono::seconds(2);
inline constexpr Duration kKeepAliveTimeout = std::chrono::seconds(1);

// A control call that names no deadline ends after this.
inline constexpr Duration kControlTimeoutMax = std::chrono::seconds(30);

// The least time between two look-ups of a host's name. A process that moves to another address is
// found after it; gRPC's own is 30 s. A look-up follows a connection that failed, so a fleet that
// is well asks nobody.
inline constexpr Duration kNameLookUpMin = std::chrono::seconds(1);

// Keeps gRPC up from the first call until the process ends. Otherwise it goes down with its last
// channel or server. That joins a thread of its own, which may sit in a poll of 10 s (gRPC 1.51,
// after megabytes were written). Exits would be late. MakeChannel calls this. Call it too before
// you make a server.
void KeepGrpcUp();

// Makes a channel without touching the network. The first call makes the connection. After a break
// it is made again, with a pause of 100 ms that doubles up to 1 s. The name in `address` is looked
// up again, once in kNameLookUpMin at most. Proxies of the environment are not used.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           int message_bytes_max = kMessageBytesMax);
// The same, but other channels of the process to this address never lend it their connection.
std::shared_ptr<grpc::Channel> MakeOwnChannel(const std::string& address);

// Ends the pause between two tries to connect, if the last one failed: tries at once. For a caller
// that knows, or hopes, that its peer is back. Does not wait.
void HurryChannel(grpc::Channel& channel);

}  // namespace ckv
