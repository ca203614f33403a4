#include "client/ctl/doctor/fleet_facts.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/version.h"
#include "proto/convert.h"
#include "transport/fabric.h"

namespace ckv::ctl::doctor {
namespace {

constexpr Duration kWallClockTick = std::chrono::milliseconds(1);

// Facts that are malformed are as good as none: the version is told to be unknown.
template <typename Reply>
void TakeProcess(const Reply& reply, Told& told) {
  if (!reply.has_process()) return;
  absl::StatusOr<ProcessFacts> facts = FromProto(reply.process());
  if (facts.ok()) told.process = *std::move(facts);
}

void AskHolder(const Fleet& fleet, MemberReport& report, Told& told) {
  grpc::ClientContext context;
  fleet.Prepare(context);
  const uint64_t asked = WallClockMilliseconds();
  report.status = HolderError(ConnectHolder(report.member)->Stats(&context, {}, &report.stats),
                              report.member, "Stats");
  if (!report.status.ok()) return;
  TakeProcess(report.stats, told);
  told.ReadClock(asked, WallClockMilliseconds());
}

void AskRequester(const Fleet& fleet, MemberReport& report, Told& told,
                  std::vector<v1::DescribeReply>& requesters) {
  grpc::ClientContext context;
  fleet.Prepare(context);
  v1::DescribeReply reply;
  const auto stub = v1::RequesterService::NewStub(MakeChannel(report.member.control_address));
  const uint64_t asked = WallClockMilliseconds();
  report.status = FromGrpc(stub->Describe(&context, {}, &reply), "Describe");
  if (!report.status.ok()) return;
  TakeProcess(reply, told);
  told.ReadClock(asked, WallClockMilliseconds());
  requesters.push_back(std::move(reply));
}

}  // namespace

void Told::ReadClock(uint64_t asked_wall_ms, uint64_t answered_wall_ms) {
  if (!process) return;
  const auto asked = static_cast<int64_t>(asked_wall_ms);
  const auto waited = static_cast<int64_t>(answered_wall_ms) - asked;
  clock_ahead =
      std::chrono::milliseconds(static_cast<int64_t>(process->wall_clock_ms) - asked - waited / 2);
  clock_error = std::chrono::milliseconds(waited / 2) + kWallClockTick;
}

std::vector<const Told*> FleetFacts::Telling() const {
  std::vector<const Told*> telling;
  if (directory.process) telling.push_back(&directory);
  for (const Told& member : members) {
    if (member.process) telling.push_back(&member);
  }
  return telling;
}

FleetFacts AskFleet(Fleet& fleet) {
  FleetFacts facts;
  facts.version = std::string(Version());
  facts.commit = std::string(Commit());
  facts.host_identity = HostIdentity();
  facts.directory.who = "the directory";
  const absl::StatusOr<std::vector<Member>> members = fleet.Members();
  facts.directory.address = fleet.directory_address();
  facts.directory.status = members.status();
  if (!members.ok()) return facts;
  const uint64_t asked = WallClockMilliseconds();
  absl::StatusOr<v1::DescribeDirectoryReply> home = fleet.DescribeDirectory();
  if (home.ok()) {
    facts.home = *std::move(home);
    facts.home_known = true;
    TakeProcess(facts.home, facts.directory);
    facts.directory.ReadClock(asked, WallClockMilliseconds());
  }
  for (const Member& member : *members) {
    MemberReport report{member, absl::OkStatus(), {}};
    Told told;
    told.who = absl::StrFormat("%s %s", RoleName(member.role), member.id.name);
    told.address = member.control_address;
    if (member.role == MemberRole::kHolder) {
      AskHolder(fleet, report, told);
    } else {
      AskRequester(fleet, report, told, facts.requesters);
    }
    told.status = report.status;
    facts.members.push_back(std::move(told));
    facts.reports.push_back(std::move(report));
  }
  facts.coverage = FindMissing(fleet, facts.reports);
  return facts;
}

}  // namespace ckv::ctl::doctor
