// Converts the loads and rankings of requesters between messages and plain types.

#pragma once

#include "absl/status/statusor.h"
#include "ckv/v1/rank.pb.h"
#include "client/rank/fleet_ranking.h"
#include "client/rank/serving_load.h"

namespace ckv {

v1::ReportLoadRequest ToProto(const LoadNotice& notice);
//   InvalidArgument     ValidateNotice refuses it, or the digest is no list of 8 bytes each. The
//                       digest's size is checked before it is copied.
absl::StatusOr<LoadNotice> FromProto(const v1::ReportLoadRequest& message);
v1::ReportLoadReply ToProto(const LoadLease& lease);
LoadLease FromProto(const v1::ReportLoadReply& message);

// The query without the corpus. Fields of the corpus may still be 0, so the query is not checked
// as a whole.
//   InvalidArgument     a chunk id is malformed, or there are too many chunks, hosts or tiers.
absl::StatusOr<FleetQuery> FromProto(const v1::RankRequest& message);
v1::RankReply ToProto(const FleetRanking& ranking);
//   InvalidArgument     `best` names no requester, or there are too many.
absl::StatusOr<FleetRanking> FromProto(const v1::RankReply& message);

}  // namespace ckv
