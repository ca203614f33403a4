#include "client/tools/ctl/fleet/fleet_findings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/grpc/health_convert.h"
#include "client/tools/ctl/fleet/fleet_health.h"

namespace ckv::ctl {
namespace {

// Returns the first line: the rest is advice, and a finding has its own.
std::string FirstLine(const absl::Status& status) {
  const std::string text(status.message());
  return Printable(text.substr(0, text.find('\n')));
}

// A silent member is a finding only if the directory still lists it.
void TakeReport(const MemberReport& report, bool home_is_known, FleetFacts& facts) {
  const Member& member = report.member;
  auto at = std::find_if(facts.members.begin(), facts.members.end(), [&](const MemberFacts& one) {
    return one.has_lease && one.role == member.role && one.name == member.id.name;
  });
  if (at == facts.members.end()) {
    if (home_is_known) return;  // its lease has ended since it was listed
    MemberFacts& added = facts.members.emplace_back();
    added.name = member.id.name;
    added.role = member.role;
    added.address = member.control_address;
    added.epoch = member.epoch.value;
    at = facts.members.end() - 1;
  }
  if (at->epoch != member.epoch.value) return;  // another incarnation
  at->silence = report.status.ok() ? Silence::kNone : Silence::kToCaller;
  at->silence_why = report.status.ok() ? "" : FirstLine(report.status);
  at->refuses = report.stats.refuses_without_lease();
  if (report.stats.has_health()) at->health = FromProto(report.stats.health());
}

RequesterFacts RequesterFactsOf(const FleetSight& sight) {
  RequesterFacts facts;
  facts.address = sight.requester_address;
  const absl::StatusOr<v1::DescribeReply>& described = *sight.requester;
  if (!described.ok()) {
    facts.silence_why = FirstLine(described.status());
    return facts;
  }
  facts.directory_address = Printable(described->directory_address());
  facts.is_of_fleet = sight.is_of_fleet;
  facts.hears_directory = described->directory_connected();
  return facts;
}

// Queries the named requester if any, then the directory for its state.
void LookBehindMembers(Fleet& fleet, FleetSight& sight) {
  if (!fleet.options().requester.empty()) {
    sight.requester_address = fleet.requester_address();
    sight.requester = fleet.Describe();
    if (sight.directory.ok() && sight.requester->ok()) {
      std::vector<Member> members;
      for (const MemberReport& report : sight.members) members.push_back(report.member);
      sight.is_of_fleet = IsOfFleet(fleet, **sight.requester, members);
    }
  }
  if (sight.directory.ok()) sight.home = fleet.DescribeDirectory();
}

}  // namespace

FleetSight LookAtFleet(Fleet& fleet) {
  FleetSight sight;
  std::vector<v1::EndedLease> ended;  // requested, so that a directory that waits answers, too
  const absl::StatusOr<std::vector<Member>> members = fleet.Members(&ended);
  sight.directory = members.status();
  // Empty if a requester should provide the directory's address and does not answer.
  sight.directory_address = fleet.directory_address();
  if (members.ok()) sight.members = QueryMembers(fleet, *members);
  LookBehindMembers(fleet, sight);
  return sight;
}

FleetFacts FactsOf(const FleetSight& sight) {
  FleetFacts facts;
  bool home_is_known = false;
  if (sight.home.ok()) {
    if (absl::StatusOr<FleetFacts> reported = FactsFrom(*sight.home); reported.ok()) {
      facts = *std::move(reported);
      home_is_known = true;
    }
  }
  if (!facts.directory) facts.directory.emplace();
  facts.directory->address = sight.directory_address;
  if (!sight.directory.ok()) facts.directory->silence_why = FirstLine(sight.directory);
  for (const MemberReport& report : sight.members) TakeReport(report, home_is_known, facts);
  if (sight.requester) facts.requester = RequesterFactsOf(sight);
  return facts;
}

std::string FindingsText(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%s: %s %s (%s)\n  -> %s\n", SeverityName(finding.severity),
                          Printable(finding.subject), Printable(finding.what),
                          CodeName(finding.code), Printable(finding.remedy));
  }
  return text;
}

Json FindingsJson(const std::vector<Finding>& findings) {
  Json json = Json::array();
  for (const Finding& finding : findings) {
    json.push_back({{"code", CodeName(finding.code)},
                    {"severity", SeverityName(finding.severity)},
                    {"subject", finding.subject},
                    {"what", finding.what},
                    {"remedy", finding.remedy}});
  }
  return json;
}

absl::Status VerdictOf(const std::vector<Finding>& findings, const absl::Status& directory) {
  if (!directory.ok())
    return absl::Status(StatusOf(FindingCode::kDirectoryUnreachable), directory.message());
  absl::Status status = StatusOf(findings);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(Printable(std::string(status.message())),
                                                  "\n  ckvctl health shows what to do about each"));
}

}  // namespace ckv::ctl
