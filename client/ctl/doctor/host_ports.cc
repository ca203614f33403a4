#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/doctor/host_checks.h"
#include "proto/base/host_port.h"

namespace ckv::ctl::doctor {
namespace {

// Those of daemons that run are their own.
Checks JudgePlannedPorts(const HostView& view) {
  if (!view.planned) return {Skipped("ports", "no configuration of a ckvd that is still to start")};
  const DaemonSettings& planned = *view.planned;
  Checks found;
  size_t count = 0;
  const bool data = planned.MayHave("holder") && planned.HasFabric("tcp");
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"listen", planned.listen},
                                          {"data_listen", data ? planned.data_listen : ""},
                                          {"metrics.address", planned.metrics_address}}) {
    const auto address = ckv::HostPort::Parse(value);
    if (value.empty() || !address.ok() || address->port == 0) continue;
    ++count;
    const auto owner = ListenerOf(view.files, address->host, address->port);
    if (!owner) continue;
    found.push_back(Fail(
        "ports",
        absl::StrFormat("%s of %s is %s, and %s listens there", key, planned.origin, value, *owner),
        absl::StrFormat("%s: %s\nor end the other: ss -ltnp sport = :%d", key,
                        ckv::HostPort{address->host, 0}.ToString(), address->port)));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        Ok("ports", absl::StrFormat("%s of %s, all free", FormatCount(count, "fixed port"),
                                    planned.origin)));
  return checks;
}

// Who has a name or a folder first, by what makes it one and the same.
using Owners = std::map<std::string, std::string>;

// Two of one name would end each other's leases, and two of one store would write over each other;
// ckvd refuses both, the later one with an error.
Checks JudgeNames(const HostView& view) {
  Checks found;
  Owners names, folders;
  const auto take = [&](Owners& owners, const std::string& key, const std::string& value,
                        const DaemonSettings& settings, const char* what, const char* remedy) {
    if (value.empty()) return;
    const auto [first, fresh] = owners.try_emplace(key + value, settings.origin);
    if (fresh) return;
    found.push_back(Fail(
        "names",
        absl::StrFormat("%s and %s have the %s %s", first->second, settings.origin, what, value),
        remedy));
  };
  const auto judge = [&](const DaemonSettings& settings, const std::string& network,
                         const std::string& mounts) {
    // A name is one of a directory.
    take(names, network + "/" + settings.directory + "/", settings.name, settings, "name",
         "give one another: name: NAME");
    take(folders, mounts, settings.store_path, settings, "store.path",
         "give one another: store.path: FOLDER");
  };
  const std::string network = view.files.Link("/proc/self/ns/net").value_or("");
  const std::string mounts = view.files.Link("/proc/self/ns/mnt").value_or("");
  for (const HostDaemon& daemon : view.daemons)
    judge(daemon.settings, daemon.network_namespace, daemon.mount_namespace);
  if (view.planned) judge(*view.planned, network, mounts);
  Checks checks;
  const size_t count = view.AllSettings().size();
  AddOr(checks, std::move(found),
        count == 0 ? Skipped("names", "no ckvd runs here, and no configuration is named")
                   : Ok("names", "every ckvd here has a name and a store of its own"));
  return checks;
}

}  // namespace

Checks JudgePorts(const HostView& view) {
  Checks checks = JudgePlannedPorts(view);
  for (Check& check : JudgeNames(view)) checks.push_back(std::move(check));
  return checks;
}

}  // namespace ckv::ctl::doctor
