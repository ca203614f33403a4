#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/doctor/host_checks.h"

namespace ckv::ctl::doctor {
namespace {

constexpr char kDevices[] = "/sys/class/infiniband";
constexpr uint32_t kGidAuto = 256;      // as verbs.gid_index has it
constexpr uint32_t kGidCountMax = 256;  // entries of a port's table that are looked at

struct PortView {
  std::string folder;
  std::string name;   // "mlx5_0/1"
  std::string state;  // "4: ACTIVE"
  std::string link;   // "Ethernet", "InfiniBand"
  std::string netdev;
};

struct Gid {
  uint32_t index = 0;
  bool v2 = false;    // RoCE v2
  bool ipv4 = false;  // ::ffff:a.b.c.d
};

PortView PortOf(const HostFiles& files, const std::string& device, uint32_t number) {
  PortView port;
  port.folder = absl::StrFormat("%s/%s/ports/%d", kDevices, device, number);
  port.name = absl::StrFormat("%s/%d", device, number);
  port.state = files.Read(port.folder + "/state").value_or("");
  port.link = files.Read(port.folder + "/link_layer").value_or("");
  port.netdev = files.Read(port.folder + "/gid_attrs/ndevs/0").value_or("");
  return port;
}

std::vector<Gid> GidsOf(const HostFiles& files, const PortView& port) {
  std::vector<Gid> gids;
  for (const std::string& name : files.List(port.folder + "/gids")) {
    const auto index = LeadingNumber(name);
    const auto text = files.Read(port.folder + "/gids/" + name);
    if (!index || *index >= kGidCountMax || !text) continue;
    if (text->find_first_not_of("0:") == std::string::npos) continue;  // an entry that is free
    const std::string type = files.Read(port.folder + "/gid_attrs/types/" + name).value_or("");
    gids.push_back({static_cast<uint32_t>(*index), type.find("v2") != std::string::npos,
                    text->starts_with("0000:0000:0000:0000:0000:ffff:")});
  }
  std::sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return gids;
}

Check JudgePort(const PortView& port) {
  if (port.state.empty()) {
    return Fail("rdma", absl::StrFormat("there is no port %s", port.name),
                "verbs.device and verbs.port as in ls /sys/class/infiniband/*/ports");
  }
  if (port.state.find("ACTIVE") != std::string::npos) {
    return Ok("rdma", absl::StrFormat("port %s is active, %s", port.name, port.link));
  }
  const bool ethernet = port.link == "Ethernet";
  return Fail(
      "rdma",
      absl::StrFormat("port %s is %s, %s: no lane can be opened", port.name, port.state, port.link),
      ethernet ? absl::StrFormat("ip link set dev %s up, and look at its cable: ethtool %s",
                                 port.netdev.empty() ? "NETDEV" : port.netdev,
                                 port.netdev.empty() ? "NETDEV" : port.netdev)
               : std::string("look at its cable, and that a subnet manager runs: "
                             "ibstat; systemctl start opensm"));
}

Check JudgeGids(const HostFiles& files, const PortView& port, const DaemonSettings& settings) {
  const std::vector<Gid> gids = GidsOf(files, port);
  const auto best =
      std::find_if(gids.begin(), gids.end(), [](const Gid& gid) { return gid.v2 && gid.ipv4; });
  const std::string netdev = port.netdev.empty() ? "NETDEV" : port.netdev;
  const std::string address = absl::StrFormat("ip address add ADDRESS/24 dev %s", netdev);
  if (gids.empty()) {
    return Fail("gid",
                absl::StrFormat("port %s has no GID: its network device has no address", port.name),
                address);
  }
  const uint32_t wanted = settings.verbs_gid_index;
  if (wanted != kGidAuto) {
    const auto chosen =
        std::find_if(gids.begin(), gids.end(), [&](const Gid& gid) { return gid.index == wanted; });
    const std::string remedy = best == gids.end()
                                   ? "take verbs.gid_index out of the configuration"
                                   : absl::StrFormat("verbs.gid_index: %d", best->index);
    if (chosen == gids.end()) {
      return Fail("gid",
                  absl::StrFormat("verbs.gid_index of %s is %d, and that entry of port %s is "
                                  "empty",
                                  settings.origin, wanted, port.name),
                  remedy);
    }
    if (port.link == "Ethernet" && !chosen->v2) {
      return Warn("gid",
                  absl::StrFormat("verbs.gid_index of %s is %d, which is RoCE v1 on port %s: "
                                  "it does not pass routers",
                                  settings.origin, wanted, port.name),
                  remedy);
    }
    return Ok("gid", absl::StrFormat("port %s: entry %d, as named", port.name, wanted));
  }
  if (port.link != "Ethernet")
    return Ok("gid", absl::StrFormat("port %s has %s", port.name, FormatCount(gids.size(), "GID")));
  if (best == gids.end()) {
    return Warn(
        "gid",
        absl::StrFormat("port %s has no GID of RoCE v2 with an IPv4 address among %d: peers "
                        "may take entries of different networks",
                        port.name, gids.size()),
        address);
  }
  return Ok("gid",
            absl::StrFormat("port %s: RoCE v2 with an IPv4 address at %d", port.name, best->index));
}

}  // namespace

Checks JudgeRdma(const HostView& view) {
  const std::vector<std::string> devices = view.files.List(kDevices);
  Checks checks;
  bool wanted = false;
  for (const DaemonSettings* settings : view.AllSettings()) {
    if (!settings->HasFabric("verbs")) continue;
    wanted = true;
    if (devices.empty()) {
      checks.push_back(Fail(
          "rdma",
          absl::StrFormat("%s has verbs among its fabrics, and there is no device in %s",
                          settings->origin, kDevices),
          "load its module: modprobe mlx5_ib (or ib_uverbs)\nor soft-RoCE: modprobe rdma_rxe; rdma "
          "link add rxe0 type rxe netdev NETDEV\nor fabrics: shm,tcp"));
      continue;
    }
    if (settings->verbs_device.empty() && devices.size() > 1) {
      checks.push_back(Fail("rdma",
                            absl::StrFormat("%s names no verbs.device, and there are %s",
                                            settings->origin, absl::StrJoin(devices, ", ")),
                            "verbs.device: " + devices.front()));
      continue;
    }
    const std::string device =
        settings->verbs_device.empty() ? devices.front() : settings->verbs_device;
    const PortView port = PortOf(view.files, device, settings->verbs_port);
    checks.push_back(JudgePort(port));
    if (checks.back().verdict == Verdict::kOk)
      checks.push_back(JudgeGids(view.files, port, *settings));
  }
  if (wanted) return checks;
  return {
      Skipped("rdma", devices.empty()
                          ? std::string("no device, and no ckvd here has verbs among its fabrics")
                          : absl::StrFormat("%s exists, and no ckvd here has verbs among its "
                                            "fabrics: fabrics: shm,tcp,verbs",
                                            absl::StrJoin(devices, ", ")))};
}

}  // namespace ckv::ctl::doctor
