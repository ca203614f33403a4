// Waits until a ckvd that may just be starting serves.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "proto/base/clock.h"

namespace ckv::ctl {

// Waits until the server at the other end of `channel` says that it serves `service`, at most until
// `deadline`; then a call says why not. It listens to the server's health service: nothing is
// polled, and gRPC makes the connection again after pauses of up to a second.
void AwaitServing(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                  Clock& clock, Instant deadline);

}  // namespace ckv::ctl
