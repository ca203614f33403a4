// ckvctl health: whether the fleet serves, in a line for each thing that is wrong.

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/ctl/commands.h"
#include "client/ctl/fleet/fleet_health.h"
#include "client/ctl/watch.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

struct Problem {
  std::string what;  // "directory 127.0.0.1:7400", "holder h0"
  std::string why;
};

absl::Status RunHealth(const Ctl& ctl) {
  Fleet fleet(ctl.fleet, ctl.clock);
  std::vector<Problem> problems;
  absl::Status verdict;
  const auto note = [&](std::string what, const absl::Status& status) {
    if (status.ok()) return;
    problems.push_back({std::move(what), Printable(std::string(status.message()))});
    if (verdict.ok()) verdict = status;
  };
  size_t member_count = 0;
  const absl::StatusOr<std::vector<Member>> known = fleet.Members();
  // If a requester is to tell the directory's address and does not answer, there is none.
  note(fleet.directory_address().empty() ? "directory" : "directory " + fleet.directory_address(),
       known.status());
  if (known.ok()) {
    const std::vector<MemberReport> members = AskMembers(fleet, *known);
    member_count = members.size();
    for (const MemberReport& report : members) {
      note(absl::StrFormat("%s %s", RoleName(report.member.role), report.member.id.name),
           report.status);
    }
    const absl::StatusOr<Coverage> coverage = FindMissing(fleet, members);
    note("corpora", coverage.status());
    if (coverage.ok() && verdict.ok()) note("corpora", Judge(members, *coverage));
  }
  // A fleet without a requester is one that a requester was not named for.
  if (!ctl.fleet.requester.empty())
    note("requester " + ctl.fleet.requester, fleet.Describe().status());

  Json json = {{"healthy", problems.empty()}, {"problems", Json::array()}};
  std::string text;
  for (const Problem& problem : problems) {
    // An error of a holder names it, with its address.
    const bool named = problem.why.starts_with(problem.what + " ");
    absl::StrAppendFormat(&text, "%s%s\n", named ? "" : problem.what + ": ", problem.why);
    json["problems"].push_back({{"what", problem.what}, {"why", problem.why}});
  }
  if (problems.empty()) text = absl::StrFormat("ok: %s\n", FormatCount(member_count, "member"));
  ctl.Print(text, json);
  if (problems.empty()) return absl::OkStatus();
  return absl::Status(verdict.code(), FormatCount(problems.size(), "problem") +
                                          "\n  ckvctl status shows the members and their counters");
}

}  // namespace

void AddHealthCommand(CLI::App& app, Ctl& ctl) {
  CLI::App* verb = AddVerb(
      app, "health", "Tell whether the fleet serves: ok, or a line for each problem",
      "  ckvctl health\n  ckvctl health --watch 5s\n  ckvctl health -o json | jq .problems\n\n"
      "It asks the directory, every member, and the requester if one is named. It looks for "
      "chunks\n"
      "that no live holder has. The exit code is that of the first problem, 0 if there is none.");
  AddWatch(*verb, ctl);
  verb->callback([&ctl] { ctl.run = [&ctl] { return RunHealth(ctl); }; });
}

}  // namespace ckv::ctl
