#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/doctor/fleet_checks.h"

namespace ckv::ctl::doctor {
namespace {

// The first line: what follows is advice, and the remedy is that.
std::string FirstLine(const absl::Status& status) {
  const std::string text(status.message());
  return text.substr(0, text.find('\n'));
}

// The check that a finding belongs to, or "" if doctor looks at that more closely by itself.
std::string_view CheckOf(FindingCode code) {
  switch (code) {
    case FindingCode::kMemberUnreachable:
    case FindingCode::kHolderRefuses:
    case FindingCode::kHolderUnreachedByRequester:
    case FindingCode::kMemberLost:
    case FindingCode::kDescriptorsLow:
      return "members";
    case FindingCode::kCorpusUnproven:
    case FindingCode::kCorpusChunksMissing:
    case FindingCode::kCorpusCopiesMissing:
    case FindingCode::kHolderLacksChunks:
    case FindingCode::kHolderUnreadableChunks:
    case FindingCode::kHolderReturning:
    case FindingCode::kDirectoryLearning:
    case FindingCode::kCorporaSkipped:
      return "chunks";
    case FindingCode::kRequesterOtherFleet:
    case FindingCode::kRequesterUnreachable:
    case FindingCode::kRequesterWithoutDirectory:
      return "requester";
    case FindingCode::kNoHolder:
      return "holders";
    case FindingCode::kWireMismatch:
    case FindingCode::kBuildsMixed:
    case FindingCode::kClockOff:
      return "";
    default:
      return "durable";
  }
}

// The findings of ckvctl health that belong to one check.
Checks FindingsOf(const FleetFacts& facts, std::string_view check) {
  Checks found;
  for (const Finding& finding : facts.findings) {
    if (CheckOf(finding.code) != check) continue;
    const std::string text = absl::StrFormat("%s %s (%s)", Printable(finding.subject),
                                             Printable(finding.what), CodeName(finding.code));
    const std::string name(check);
    found.push_back(finding.severity == Severity::kBroken
                        ? Fail(name, text, Printable(finding.remedy))
                        : Warn(name, text, Printable(finding.remedy)));
  }
  return found;
}

Checks JudgeMembers(const FleetFacts& facts) {
  Checks checks;
  AddOr(checks, FindingsOf(facts, "members"),
        Ok("members", "every one answers: " + FormatCount(facts.members.size(), "member")));
  for (Check& check : FindingsOf(facts, "requester")) checks.push_back(std::move(check));
  return checks;
}

Checks JudgeHolders(const FleetFacts& facts) {
  size_t count = 0;
  for (const MemberReport& report : facts.reports) {
    if (report.member.role == MemberRole::kHolder) ++count;
  }
  Checks checks;
  AddOr(checks, FindingsOf(facts, "holders"), Ok("holders", FormatCount(count, "holder")));
  return checks;
}

Checks JudgeChunks(const FleetFacts& facts) {
  Checks checks;
  AddOr(checks, FindingsOf(facts, "chunks"),
        Ok("chunks", "a live holder has each chunk of each corpus"));
  return checks;
}

Checks JudgeDurable(const FleetFacts& facts) {
  Checks found;
  if (facts.home_known && facts.home.path().empty()) {
    found.push_back(Warn("durable",
                         "the directory keeps its corpora in memory: after a restart it has only "
                         "what holders report",
                         "directory.path: /var/lib/ckv/directory"));
  }
  for (Check& check : FindingsOf(facts, "durable")) found.push_back(std::move(check));
  std::vector<std::string> names;
  size_t telling = 0;
  for (size_t i = 0; i < facts.members.size(); ++i) {
    const auto& process = facts.members[i].process;
    if (facts.reports[i].member.role != MemberRole::kHolder || !process) continue;
    ++telling;
    if (process->store_path.empty()) names.push_back(facts.reports[i].member.id.name);
  }
  if (!names.empty()) {
    found.push_back(
        Warn("durable",
             absl::StrFormat("a restart of %s loses its chunks: it keeps them in memory",
                             absl::StrJoin(names, ", ")),
             "store.path: /var/lib/ckv/NAME, a folder for each\nor load with --replicas "
             "2, so that another has them"));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        telling == 0 ? Skipped("durable", "no holder reports whether it keeps its chunks")
                     : Ok("durable", "corpora and chunks survive a restart"));
  return checks;
}

}  // namespace

Checks JudgeService(const FleetFacts& facts) {
  if (!facts.directory.status.ok()) {
    return {
        Fail("directory", FirstLine(facts.directory.status),
             "start it again with its own configuration: its --listen and directory.path\nor name "
             "another with --directory or CKV_DIRECTORY")};
  }
  Checks checks = {Ok("directory", facts.directory.address + " answers")};
  for (const auto judge : {&JudgeMembers, &JudgeChunks, &JudgeDurable, &JudgeHolders}) {
    for (Check& check : judge(facts)) checks.push_back(std::move(check));
  }
  return checks;
}

Part JudgeFleet(const FleetFacts& facts, const std::vector<HostDaemon>& here) {
  Part part;
  part.name = "fleet";
  part.title =
      absl::StrFormat("fleet: directory %s, %s",
                      facts.directory.address.empty() ? "not known" : facts.directory.address,
                      FormatCount(facts.members.size(), "member"));
  part.checks = JudgeService(facts);
  if (!facts.directory.status.ok()) return part;
  for (Check& check : JudgeAddresses(facts, here)) part.checks.push_back(std::move(check));
  for (Check& check : JudgeBuilds(facts)) part.checks.push_back(std::move(check));
  for (Check& check : JudgeHosts(facts)) part.checks.push_back(std::move(check));
  return part;
}

}  // namespace ckv::ctl::doctor
