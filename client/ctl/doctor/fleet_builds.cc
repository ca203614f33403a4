#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/doctor/fleet_checks.h"

namespace ckv::ctl::doctor {
namespace {

std::string BuildOf(const std::string& version, const std::string& commit) {
  return commit.empty() ? version : absl::StrFormat("%s (%s)", version, commit);
}

// Who has each value: "0.1.0 (3bb4fde): holders h1, h2; 0.2.0 (...): requester r1".
std::string GroupsText(const std::map<std::string, std::vector<std::string>>& groups) {
  std::vector<std::string> parts;
  for (const auto& [value, names] : groups)
    parts.push_back(absl::StrFormat("%s: %s", value, JoinWho(names)));
  return absl::StrJoin(parts, "; ");
}

Check JudgeVersions(const FleetFacts& facts) {
  std::map<std::string, std::vector<std::string>> builds;
  const auto note = [&](const Told& told) {
    if (!told.status.ok()) return;
    builds[told.process ? BuildOf(told.process->version, told.process->commit)
                        : "an earlier build, which does not report it"]
        .push_back(told.who);
  };
  note(facts.directory);
  for (const Told& member : facts.members) note(member);
  const std::string own = BuildOf(facts.version, facts.commit);
  if (builds.size() == 1 && builds.begin()->first == own)
    return Ok("version", "all processes and this ckvctl are " + own);
  builds[own].push_back("this ckvctl");
  return Warn("version",
              GroupsText(builds) + ". Answers of two builds may differ in their last bits",
              "take all to one build, holders one at a time: Upgrade in "
              "deploy/handbook/operate.md");
}

Checks JudgeWire(const FleetFacts& facts) {
  Checks found;
  size_t pairs = 0;
  for (size_t i = 0; i < facts.members.size(); ++i) {
    for (size_t j = 0; j < facts.members.size(); ++j) {
      const auto& requester = facts.members[i].process;
      const auto& holder = facts.members[j].process;
      if (facts.reports[i].member.role != MemberRole::kRequester || !requester || !holder ||
          facts.reports[j].member.role != MemberRole::kHolder) {
        continue;
      }
      ++pairs;
      if (requester->wire_version_min <= holder->wire_version_max &&
          holder->wire_version_min <= requester->wire_version_max) {
        continue;
      }
      const bool holder_old = holder->wire_version_max < requester->wire_version_min;
      found.push_back(Fail(
          "wire",
          absl::StrFormat("%s speaks wire versions %d to %d, %s %d to %d: they refuse each other",
                          facts.members[i].who, requester->wire_version_min,
                          requester->wire_version_max, facts.members[j].who,
                          holder->wire_version_min, holder->wire_version_max),
          "upgrade " + (holder_old ? facts.members[j].who : facts.members[i].who)));
    }
  }
  Checks checks;
  AddOr(checks, std::move(found),
        pairs == 0 ? Skipped("wire", "no requester and holder that report their versions")
                   : Ok("wire", "every requester and holder have a version that both speak"));
  return checks;
}

Check JudgeKernels(const FleetFacts& facts) {
  std::map<std::string, std::vector<std::string>> targets;
  for (const MemberReport& report : facts.reports) {
    if (report.member.role == MemberRole::kHolder && report.status.ok())
      targets[report.stats.kernel_target()].push_back(report.member.id.name);
  }
  if (targets.empty()) return Skipped("kernel", "no holder answers");
  if (targets.size() == 1)
    return Ok("kernel", "all holders compute with " + targets.begin()->first);
  const std::string common = BestCommonTarget(facts.reports);
  return Warn("kernel", GroupsText(targets) + ". Answers have equal bits within one target only",
              common.empty()
                  ? "take builds that have a target in common"
                  : absl::StrFormat("kernel_target: %s, on every holder and requester", common));
}

// Geometries of a model: "deepseek@r1 61x..." begins with the model's name.
Checks JudgeGeometries(const FleetFacts& facts) {
  std::map<std::string, std::map<std::string, std::vector<std::string>>> models;
  for (const MemberReport& report : facts.reports) {
    for (const std::string& text : report.stats.models())
      models[text.substr(0, text.find('@'))][Printable(text)].push_back(report.member.id.name);
  }
  Checks found;
  for (const auto& [model, geometries] : models) {
    if (geometries.size() < 2) continue;
    found.push_back(
        Warn("geometry",
             absl::StrFormat("model %s has %d geometries: %s. Engines of one refuse "
                             "corpora of the others",
                             Printable(model), geometries.size(), GroupsText(geometries)),
             "ckvctl corpus list -o json names the geometry of each corpus; load those "
             "of the old one again, or drop them"));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        models.empty()
            ? Skipped("geometry", "no holder has chunks")
            : Ok("geometry", FormatCount(models.size(), "model") + ", each of one geometry"));
  return checks;
}

Checks JudgeLeases(const FleetFacts& facts) {
  Checks found;
  std::map<uint64_t, std::vector<std::string>> spans;
  for (const Told& member : facts.members) {
    if (member.process) spans[member.process->lease_ttl_ms].push_back(member.who);
  }
  for (const auto& [ms, names] : spans) {
    const Duration ttl = std::chrono::milliseconds(ms);
    if (ttl >= kLeaseTtlMin && ttl <= kLeaseTtlMax) continue;
    found.push_back(
        Warn("lease",
             absl::StrFormat("leases of %s last %s: %s", JoinWho(names), FormatDuration(ttl),
                             ttl < kLeaseTtlMin ? "a pause of the host ends them, and calls fail"
                                                : "as long as that a dead member counts as alive"),
             "lease_ttl: 3s"));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        spans.empty() ? Skipped("lease", "no member reports how long its lease lasts")
                      : Ok("lease", absl::StrFormat("%s", FormatDuration(std::chrono::milliseconds(
                                                              spans.begin()->first)))));
  return checks;
}

}  // namespace

Checks JudgeBuilds(const FleetFacts& facts) {
  Checks checks = {JudgeVersions(facts)};
  for (Check& check : JudgeWire(facts)) checks.push_back(std::move(check));
  checks.push_back(JudgeKernels(facts));
  for (Check& check : JudgeGeometries(facts)) checks.push_back(std::move(check));
  for (Check& check : JudgeLeases(facts)) checks.push_back(std::move(check));
  return checks;
}

}  // namespace ckv::ctl::doctor
