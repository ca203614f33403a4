#include "client/ctl/doctor/fleet_facts.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/version.h"
#include "proto/convert.h"
#include "transport/fabric.h"

namespace ckv::ctl::doctor {
namespace {

constexpr Duration kWallClockTick = std::chrono::milliseconds(1);

// Malformed facts count as absent: the version is then reported as unknown.
template <typename Reply>
void TakeProcess(const Reply& reply, Told& told) {
  if (!reply.has_process()) return;
  absl::StatusOr<ProcessFacts> facts = FromProto(reply.process());
  if (facts.ok()) told.process = *std::move(facts);
}

Told ToldBy(const MemberReport& report) {
  Told told;
  told.who = absl::StrFormat("%s %s", RoleName(report.member.role), report.member.id.name);
  told.address = report.member.control_address;
  told.status = report.status;
  if (!report.status.ok()) return told;
  if (report.member.role == MemberRole::kHolder) {
    TakeProcess(report.stats, told);
  } else {
    TakeProcess(report.description, told);
  }
  told.ReadClock(report.asked_wall_ms, report.answered_wall_ms);
  return told;
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
  std::vector<v1::EndedLease> ended;  // requested, so that a directory that waits answers, too
  const absl::StatusOr<std::vector<Member>> members = fleet.Members(&ended);
  facts.directory.address = fleet.directory_address();
  facts.directory.status = members.status();
  FleetSight sight;
  sight.directory_address = facts.directory.address;
  sight.directory = members.status();
  const auto judge = [&] { facts.findings = JudgeFleet(FactsOf(sight)); };
  if (!members.ok()) {
    judge();
    return facts;
  }
  const uint64_t asked = WallClockMilliseconds();
  absl::StatusOr<v1::DescribeDirectoryReply> home = fleet.DescribeDirectory();
  if (home.ok()) {
    facts.home = *std::move(home);
    facts.home_known = true;
    TakeProcess(facts.home, facts.directory);
    facts.directory.ReadClock(asked, WallClockMilliseconds());
  }
  facts.reports = AskMembers(fleet, *members);
  for (const MemberReport& report : facts.reports) {
    facts.members.push_back(ToldBy(report));
    if (report.status.ok() && report.member.role == MemberRole::kRequester)
      facts.requesters.push_back(report.description);
  }
  sight.members = facts.reports;
  LookBehindMembers(fleet, sight);
  judge();
  return facts;
}

}  // namespace ckv::ctl::doctor
