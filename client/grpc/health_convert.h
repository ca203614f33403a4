// Converts the facts of health between messages and plain types.

#pragma once

#include "absl/status/statusor.h"
#include "ckv/v1/directory.pb.h"
#include "ckv/v1/types.pb.h"
#include "proto/health/facts.h"

namespace ckv {

v1::MemberHealth ToProto(const MemberHealth& health);
// Cuts texts that are too long, and lists: a peer's word on itself is never an error. Control
// characters become '?', for the texts end up on terminals.
MemberHealth FromProto(const v1::MemberHealth& message);

v1::MemberFacts ToProto(const MemberFacts& member);
//   InvalidArgument     the member is malformed.
absl::StatusOr<MemberFacts> FromProto(const v1::MemberFacts& message);

v1::CorpusFacts ToProto(const CorpusFacts& corpus);
CorpusFacts FromProto(const v1::CorpusFacts& message);

// Sets the facts of health in the reply, beside those that the service sets for people.
void AddFacts(const FleetFacts& facts, v1::DescribeDirectoryReply& reply);
// Returns the facts that a directory tells: without a requester, and without its address.
//   InvalidArgument     a member is malformed.
absl::StatusOr<FleetFacts> FactsFrom(const v1::DescribeDirectoryReply& reply);

}  // namespace ckv
