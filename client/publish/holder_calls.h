// Calls of a holder's control plane by those who put and copy chunks.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv {

// A holder, and who asks it, all borrowed. No call takes longer than until `deadline`.
struct HolderCalls {
  v1::HolderService::StubInterface& stub;
  const Member& holder;
  const Geometry& geometry;
  const std::string& tenant;
  Clock& clock;
  Instant deadline = kInstantMax;
};

// The holder service of a member. Connects, and once more if that fails: a holder that is away
// takes 300 ms. Its calls tell.
std::unique_ptr<v1::HolderService::StubInterface> ConnectHolder(const Member& member);

// Names the holder, its address and the call. Lines after the first are hints, one a line.
absl::Status HolderError(const grpc::Status& status, const Member& member, std::string_view call);

}  // namespace ckv
