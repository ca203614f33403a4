// Adds to each reply of a directory that is one of several which of them leads.

#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace ckv {

// Returns who leads: kLeadsItself (client/grpc/grpc_status.h), an address, or "" if none does.
// Unset if the directory is alone.
using LeaderSource = std::function<std::optional<std::string>()>;

// Returns the interceptor for a grpc::ServerBuilder. Replies of DirectoryService get trailing
// metadata kLeaderKey, unless `leader` is unset. `leader` is called from any thread.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> LeaderInterceptor(
    LeaderSource leader);

}  // namespace ckv
