// Control-plane calls to a holder, for code that puts and copies chunks.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "ckv/v1/store.grpc.pb.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv {

// A holder, and the parameters of calls to it, all borrowed. No call lasts longer than `deadline`.
struct HolderCalls {
  v1::HolderService::StubInterface& stub;
  const Member& holder;
  const Geometry& geometry;
  const std::string& tenant;
  Clock& clock;
  Instant deadline = kInstantMax;
};

// Returns the holder service of a member. Waits up to 300 ms for the connection: two attempts. If
// the holder is unreachable, the calls report it.
std::unique_ptr<v1::HolderService::StubInterface> ConnectHolder(const Member& member);

// Returns the store service of a member. Does not wait for the connection.
std::unique_ptr<v1::StoreService::StubInterface> ConnectStore(const Member& member);

// Returns the status with the holder's name and address and the call in its text. Lines after the
// first are hints, one per line.
absl::Status HolderError(const grpc::Status& status, const Member& member, std::string_view call);

}  // namespace ckv
