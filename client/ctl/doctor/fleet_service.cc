#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/doctor/fleet_checks.h"
#include "client/ctl/fleet/directory_home.h"

namespace ckv::ctl::doctor {
namespace {

// The first line: what follows is advice, and the remedy is that.
std::string FirstLine(const absl::Status& status) {
  const std::string text(status.message());
  return text.substr(0, text.find('\n'));
}

// An error of a holder names it, as the finding does already.
std::string WhyOf(const Told& told) {
  const std::string text = FirstLine(told.status);
  const std::string named = absl::StrFormat("%s at %s: ", told.who, told.address);
  return text.starts_with(named) ? text.substr(named.size()) : text;
}

Checks JudgeMembers(const FleetFacts& facts) {
  Checks found;
  for (size_t i = 0; i < facts.members.size(); ++i) {
    const Told& told = facts.members[i];
    const bool refuses = facts.reports[i].stats.refuses_without_lease();
    if (!told.status.ok()) {
      found.push_back(
          Fail("members",
               absl::StrFormat("%s at %s does not answer: %s", told.who, told.address, WhyOf(told)),
               "start it again, or open its port to this host: nc -vz of that address "
               "tells\nif it is gone for good, its lease ends by itself"));
    } else if (refuses) {
      found.push_back(Fail(
          "members", absl::StrFormat("%s refuses every request: it has no live lease", told.who),
          absl::StrFormat("look whether it reaches the directory at %s, and at its log",
                          facts.directory.address)));
    }
  }
  Checks checks;
  AddOr(checks, std::move(found),
        Ok("members", "every one answers: " + FormatCount(facts.members.size(), "member")));
  return checks;
}

Check JudgeHolders(const FleetFacts& facts) {
  size_t count = 0;
  for (const MemberReport& report : facts.reports) {
    if (report.member.role == MemberRole::kHolder) ++count;
  }
  if (count > 0) return Ok("holders", FormatCount(count, "holder"));
  return Fail("holders", "there is no holder: nothing can be loaded",
              absl::StrFormat("ckvd --role=holder --directory=%s", facts.directory.address));
}

Checks JudgeChunks(const FleetFacts& facts) {
  if (!facts.coverage.ok()) {
    return {Fail("chunks", FirstLine(facts.coverage.status()),
                 "ckvctl corpus list shows what can be read")};
  }
  Checks found;
  for (const MissingChunks& missing : facts.coverage->missing) {
    found.push_back(
        Fail("chunks",
             absl::StrFormat("no live holder has %d of %s of corpus %s", missing.missing_count,
                             FormatCount(missing.chunk_count, "chunk"), missing.corpus),
             absl::StrFormat("start the holders that ckvctl corpus show %s names\nor place them "
                             "anew: ckvctl corpus load %s ... --replace",
                             missing.corpus, missing.corpus)));
  }
  if (const uint32_t count = facts.home.unproven_corpus_count(); count > 0) {
    found.push_back(Fail("chunks",
                         absl::StrFormat("%d %s not proven to be whole and not served", count,
                                         count == 1 ? "corpus is" : "corpora are"),
                         "start every holder; ckvctl status names the corpora and what they lack"));
  }
  Checks checks;
  AddOr(checks, std::move(found), Ok("chunks", "a live holder has each chunk of each corpus"));
  return checks;
}

Checks JudgeDurable(const FleetFacts& facts) {
  Checks found;
  if (facts.home_known && facts.home.path().empty()) {
    found.push_back(Warn("durable",
                         "the directory keeps its corpora in memory: after a restart it knows only "
                         "what holders report",
                         "directory.path: /var/lib/ckv/directory"));
  }
  if (!facts.home.refusal().empty()) {
    found.push_back(Fail("durable",
                         "the directory refuses changes: " + Printable(facts.home.refusal()),
                         "make room on its disk, or mend it: df " + facts.home.path()));
  }
  if (!facts.home.old_copy().empty()) {
    found.push_back(Fail("durable",
                         "the directory's folder is an old copy, or lost its end: " +
                             Printable(facts.home.old_copy()),
                         "start every holder, so that it learns what was changed since; then see "
                         "ckvctl status and ckvctl corpus list"));
  }
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
        telling == 0 ? Skipped("durable", "no holder tells whether it keeps its chunks")
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
  for (const auto judge : {&JudgeMembers, &JudgeChunks, &JudgeDurable}) {
    for (Check& check : judge(facts)) checks.push_back(std::move(check));
  }
  checks.push_back(JudgeHolders(facts));
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
