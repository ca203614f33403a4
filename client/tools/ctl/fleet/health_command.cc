// ckvctl health: whether the fleet serves, in a line for each thing that is wrong.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/fleet/fleet_findings.h"
#include "client/tools/ctl/watch.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// The lines of a watch are read later, so each has the time.
std::string WithTime(const std::string& text) {
  const std::string time =
      absl::FormatTime("%Y-%m-%d %H:%M:%S ", absl::Now(), absl::LocalTimeZone());
  std::string timed;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty()))
    absl::StrAppend(&timed, time, line, "\n");
  return timed;
}

absl::Status RunHealth(const Ctl& ctl) {
  Fleet fleet(ctl.fleet, ctl.clock);
  const FleetFacts facts = FactsOf(LookAtFleet(fleet));
  const std::vector<Finding> findings = JudgeFleet(facts);
  const bool is_broken = AnyBroken(findings);
  const auto member_count = static_cast<uint64_t>(
      std::count_if(facts.members.begin(), facts.members.end(),
                    [](const MemberFacts& member) { return member.has_lease; }));
  std::string text = FindingsText(findings);
  if (!is_broken) text = absl::StrFormat("ok: %s\n", FormatCount(member_count, "member")) + text;
  if (ctl.watch > Duration(0)) text = WithTime(text);
  ctl.Print(text, {{"healthy", findings.empty()},
                   {"broken", is_broken},
                   {"member_count", member_count},
                   {"findings", FindingsJson(findings)}});
  absl::Status status = StatusOf(findings);
  if (status.ok()) return status;
  return absl::Status(status.code(), Printable(std::string(status.message())) +
                                         "\n  ckvctl status shows the members and their counters");
}

std::string Examples() {
  std::string text =
      "  ckvctl health\n  ckvctl health --watch 5s\n"
      "  ckvctl health -o json | jq '.findings[] | select(.severity == \"broken\")'\n\n"
      "It asks the directory, every member, and the requester if one is named. A finding is\n"
      "broken if some queries or changes fail, else a warning. The exit code is that of the first\n"
      "broken finding, and 0 if there is none. Findings, and the exit code of broken ones:"
      "\n";
  for (size_t i = 0; i < kFindingCodeCount; ++i) {
    const auto code = static_cast<FindingCode>(i);
    const int exit_code = ExitCodeFor(absl::Status(StatusOf(code), ""));
    absl::StrAppendFormat(&text, "  %-27s %s  %s\n", CodeName(code),
                          exit_code == 0 ? "-" : std::to_string(exit_code), Meaning(code));
  }
  text.pop_back();
  return text;
}

}  // namespace

void AddHealthCommand(CLI::App& app, Ctl& ctl) {
  static const std::string kExamples = Examples();
  CLI::App* verb =
      AddVerb(app, "health", "Check the fleet: print ok, or what is wrong and what to do",
              kExamples.c_str());
  AddWatch(*verb, ctl);
  verb->callback([&ctl] { ctl.run = [&ctl] { return RunHealth(ctl); }; });
}

}  // namespace ckv::ctl
