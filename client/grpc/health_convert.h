// Converts health facts between messages and plain types.

#pragma once

#include "absl/status/statusor.h"
#include "ckv/v1/directory.pb.h"
#include "ckv/v1/types.pb.h"
#include "proto/health/facts.h"

namespace ckv {

v1::MemberHealth ToProto(const MemberHealth& health);
// Truncates texts and lists that are too long, because a peer's report on itself is never an error.
// Replaces control characters with '?', because the texts are shown on terminals.
MemberHealth FromProto(const v1::MemberHealth& message);

v1::MemberFacts ToProto(const MemberFacts& member);
//   InvalidArgument     the member is malformed.
absl::StatusOr<MemberFacts> FromProto(const v1::MemberFacts& message);

v1::CorpusFacts ToProto(const CorpusFacts& corpus);
CorpusFacts FromProto(const v1::CorpusFacts& message);

v1::ReplicationFacts ToProto(const ReplicationFacts& facts);
ReplicationFacts FromProto(const v1::ReplicationFacts& message);

// Sets the health facts in the reply, in addition to those that the service sets for people.
void AddFacts(const FleetFacts& facts, v1::DescribeDirectoryReply& reply);
// Returns the facts that a directory reports, without a requester's facts and without the
// directory's address.
//   InvalidArgument     a member is malformed.
absl::StatusOr<FleetFacts> FactsFrom(const v1::DescribeDirectoryReply& reply);

}  // namespace ckv
