#include "client/tools/ctl/fleet/query_members.h"

#include <memory>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "client/tools/ctl/output.h"
#include "client/tools/ctl/parallel_jobs.h"

namespace ckv::ctl {
namespace {

void QueryMember(const Fleet& fleet, Instant deadline, MemberReport& report) {
  const Member& member = report.member;
  const Duration limit = fleet.options().timeout;
  std::unique_ptr<v1::HolderService::StubInterface> holder;
  if (member.role == MemberRole::kHolder && fleet.clock().Now() < deadline)
    holder = ConnectHolder(member);
  if (fleet.clock().Now() >= deadline) {
    report.status = absl::DeadlineExceededError(
        absl::StrFormat("it was not queried: the queries of others took %s",
                        FormatDuration(limit * kQueryLimitCountMax)));
    return;
  }
  grpc::ClientContext context;
  SetDeadline(context, fleet.clock(), deadline, limit);
  if (holder != nullptr) {
    report.status = HolderError(holder->Stats(&context, {}, &report.stats), member, "Stats");
  } else {
    const auto stub = v1::RequesterService::NewStub(MakeChannel(member.control_address));
    report.status = FromGrpc(stub->Describe(&context, {}, &report.description), "Describe");
  }
}

}  // namespace

std::vector<MemberReport> QueryMembers(const Fleet& fleet, const std::vector<Member>& members) {
  std::vector<MemberReport> reports;
  for (const Member& member : members) reports.push_back({member, absl::OkStatus(), {}});
  const Instant deadline = fleet.clock().Now() + fleet.options().timeout * kQueryLimitCountMax;
  RunParallel(reports.size(), [&](size_t i) { QueryMember(fleet, deadline, reports[i]); });
  return reports;
}

}  // namespace ckv::ctl
