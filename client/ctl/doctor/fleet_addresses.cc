#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/doctor/fleet_checks.h"
#include "proto/base/host_port.h"

namespace ckv::ctl::doctor {
namespace {

bool IsHere(const std::string& address) {
  const auto parsed = ckv::HostPort::Parse(address);
  return parsed.ok() && (parsed->IsLoopback() || parsed->IsWildcard());
}

// "7401" of "127.0.0.1:7401".
std::string PortOf(const std::string& address) {
  return address.substr(std::min(address.rfind(':') + 1, address.size()));
}

// A fleet of one machine may have addresses of that machine alone.
bool SpansHosts(const FleetFacts& facts) {
  std::vector<std::string> identities = {facts.host_identity};
  for (const Told* told : facts.Telling()) identities.push_back(told->process->host_identity);
  const auto other = [&](const std::string& one) { return one != identities.front(); };
  const auto outside = [](const Told& member) { return !IsHere(member.address); };
  return std::any_of(identities.begin(), identities.end(), other) ||
         !IsHere(facts.directory.address) ||
         std::any_of(facts.members.begin(), facts.members.end(), outside);
}

Checks JudgeControl(const FleetFacts& facts) {
  Checks found;
  const bool spans = SpansHosts(facts);
  for (const Told& member : facts.members) {
    if (!spans || !IsHere(member.address)) continue;
    found.push_back(
        Fail("address",
             absl::StrFormat("%s advertises %s to the directory, which other hosts do not reach",
                             member.who, member.address),
             absl::StrFormat("listen: HOST:%s with an address of its host that others "
                             "reach, or advertise: HOST:%s",
                             PortOf(member.address), PortOf(member.address))));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        Ok("address", spans ? "every member has an address that other hosts may reach"
                            : "all processes are on this machine"));
  return checks;
}

Checks JudgeData(const FleetFacts& facts) {
  Checks found;
  size_t known = 0;
  for (const Told& member : facts.members) {
    if (!member.process || member.process->data_listen.empty()) continue;
    ++known;
    const auto data = ckv::HostPort::Parse(member.process->data_listen);
    const auto control = ckv::HostPort::Parse(member.address);
    if (!data.ok() || !control.ok() || !data->IsLoopback() || control->IsLoopback()) continue;
    found.push_back(Fail(
        "data_address",
        absl::StrFormat("the tcp lanes of %s listen on %s, and it is called at %s: other hosts "
                        "get no answer",
                        member.who, data->ToString(), member.address),
        absl::StrFormat("data_listen: %s, and restart it",
                        ckv::HostPort{control->host, data->port}.ToString())));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        known == 0 ? Skipped("data_address", "no holder reports tcp lanes")
                   : Ok("data_address", "tcp lanes listen where their holders are called"));
  return checks;
}

// The directory keeps the name for the member that has it, so the other one is not in its list.
Checks JudgeClashes(const FleetFacts& facts, const std::vector<HostDaemon>& here) {
  Checks found;
  size_t known = 0;
  for (const HostDaemon& daemon : here) {
    const DaemonSettings& settings = daemon.settings;
    if (settings.name.empty() || settings.directory != facts.directory.address) continue;
    for (size_t i = 0; i < facts.members.size(); ++i) {
      const std::string& name = facts.reports[i].member.id.name;
      const auto& process = facts.members[i].process;
      if ((name != settings.name && name != settings.name + ".requester") || !process) continue;
      ++known;
      const bool same = process->host_identity == facts.host_identity && process->pid == daemon.pid;
      if (same) continue;
      found.push_back(Fail(
          "names",
          absl::StrFormat("pid %d here is called %s, and so is the %s at %s (pid %d): only that "
                          "one is registered",
                          daemon.pid, settings.name, RoleName(facts.reports[i].member.role),
                          facts.members[i].address, process->pid),
          "give one another, and restart it: name: NAME"));
      break;
    }
  }
  Checks checks;
  AddOr(checks, std::move(found),
        known == 0 ? Skipped("names", "no ckvd of this fleet runs on this machine")
                   : Ok("names", "every ckvd here is the one that is registered"));
  return checks;
}

Checks JudgeFallbacks(const FleetFacts& facts) {
  Checks found;
  for (const v1::DescribeReply& requester : facts.requesters) {
    for (const v1::DescribeReply::Holder& holder : requester.holders()) {
      if (holder.fallback().empty()) continue;
      found.push_back(Warn("rdma",
                           absl::StrFormat("requester %s speaks to %s over tcp where it should use "
                                           "verbs: %s",
                                           requester.id(), holder.member().id(), holder.fallback()),
                           "ckvctl doctor host, as root on both hosts"));
    }
  }
  Checks checks;
  AddOr(checks, std::move(found), Ok("rdma", "no requester fell back from verbs to tcp"));
  return checks;
}

}  // namespace

Checks JudgeAddresses(const FleetFacts& facts, const std::vector<HostDaemon>& here) {
  Checks checks = JudgeControl(facts);
  for (Check& check : JudgeData(facts)) checks.push_back(std::move(check));
  for (Check& check : JudgeClashes(facts, here)) checks.push_back(std::move(check));
  for (Check& check : JudgeFallbacks(facts)) checks.push_back(std::move(check));
  return checks;
}

}  // namespace ckv::ctl::doctor
