// Goal: ckvctl doctor finds each mistake of a machine that it looks for, with its numbers and its
// remedy, and finds none on a machine that is set up well.
// Method: trees of files like /proc and /sys in a folder: a good machine, and the same with one
// thing changed.

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/ctl.h"
#include "client/ctl/doctor/host_checks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/daemon/config.h"
#include "tests/support/temp_folder.h"

namespace ckv::ctl::doctor {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr ClockSync kGoodClock = {true, true, std::chrono::milliseconds(3)};

// A machine of two processors and 16 GiB, where one holder with verbs runs and all is well.
class DoctorHostTest : public testing::Test {
 protected:
  DoctorHostTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = test::TempPath(std::string("machine-") + test->name());
    Write("/sys/devices/system/cpu/online", "0-1");
    Write("/sys/devices/system/node/online", "0");
    Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    Memory(16, 0, 0, 0);
    Write("/proc/sys/vm/swappiness", "60");
    Write("/proc/net/tcp", "  sl  local_address rem_address   st");
    Write("/proc/net/tcp6", "  sl  local_address rem_address   st");
    Port("4: ACTIVE", "Ethernet");
    Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0007", "RoCE v2");
    Daemon(812, {"--role=holder", "--name=h1", "--listen=10.0.0.7:7401", "--store-capacity=8GiB",
                 "--fabrics=shm,tcp,verbs", "--directory=10.0.0.1:7400"});
    Limits("812", "unlimited", "65536");
    Limits("self", "8388608", "65536");
  }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text << "\n";
  }
  void Link(const std::string& path, const std::string& target) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::filesystem::remove(file);
    std::filesystem::create_symlink(target, file);
  }
  void Remove(const std::string& path) { std::filesystem::remove_all(root_ + path); }
  void Memory(uint64_t gib, uint64_t pages, uint64_t free_pages, uint64_t swap_gib) {
    std::ostringstream text;
    text << "MemTotal:       " << (gib << 20) << " kB\nSwapTotal:  " << (swap_gib << 20)
         << " kB\nHugePages_Total:   " << pages << "\nHugePages_Free:    " << free_pages
         << "\nHugepagesize:       2048 kB";
    Write("/proc/meminfo", text.str());
  }
  void Daemon(int pid, const std::vector<std::string>& flags, const std::string& variables = "") {
    const std::string process = "/proc/" + std::to_string(pid);
    Write(process + "/comm", "ckvd");
    std::string line = "/usr/bin/ckvd";
    for (const std::string& flag : flags) line += std::string(1, '\0') + flag;
    Write(process + "/cmdline", line + std::string(1, '\0'));
    Write(process + "/environ", variables);
    Write(process + "/status", "Cpus_allowed_list:\t0-1\nVmSwap:\t0 kB\nCapEff:\t0000000000000000");
    Link(process + "/exe", "/usr/bin/ckvd");
    Limits(std::to_string(pid), "unlimited", "65536");
  }
  void Limits(const std::string& pid, const std::string& memlock, const std::string& files) {
    Write("/proc/" + pid + "/limits",
          "Limit                     Soft Limit           Hard Limit\n"
          "Max open files            " +
              files +
              "   1048576   files\n"
              "Max locked memory         " +
              memlock + "   unlimited  bytes");
  }
  void Port(const std::string& state, const std::string& link) {
    const std::string port = "/sys/class/infiniband/mlx5_0/ports/1";
    Write(port + "/state", state);
    Write(port + "/link_layer", link);
    Write(port + "/gid_attrs/ndevs/0", "eth7");
    Write(port + "/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000");
  }
  void Gid(int index, const std::string& gid, const std::string& type) {
    const std::string port = "/sys/class/infiniband/mlx5_0/ports/1";
    Write(port + "/gids/" + std::to_string(index), gid);
    Write(port + "/gid_attrs/types/" + std::to_string(index), type);
  }
  std::string Config(const std::string& yaml) {
    Write("/etc/h2.yaml", yaml);
    return root_ + "/etc/h2.yaml";
  }

  Checks Judge(const std::string& config = "", const ClockSync& clock = kGoodClock) {
    const absl::StatusOr<HostView> view = LookAtHost(root_, config, clock);
    EXPECT_TRUE(view.ok()) << view.status();
    return view.ok() ? JudgeHost(*view).checks : Checks();
  }
  // The checks of a name that are wrong.
  static Checks Wrong(const Checks& checks, const std::string& name) {
    Checks wrong;
    for (const Check& check : checks) {
      if (check.name == name && !check.remedy.empty()) wrong.push_back(check);
    }
    return wrong;
  }
  // Expects one mistake of this name, and returns it.
  static Check Only(const Checks& checks, const std::string& name, Verdict verdict) {
    const Checks wrong = Wrong(checks, name);
    EXPECT_EQ(wrong.size(), 1u) << name;
    if (wrong.size() != 1) return {};
    EXPECT_EQ(wrong.front().verdict, verdict) << wrong.front().finding;
    return wrong.front();
  }

  std::string root_;
};

TEST_F(DoctorHostTest, AGoodMachineHasNoMistake) {
  for (const Check& check : Judge()) {
    EXPECT_EQ(check.remedy, "") << check.name << ": " << check.finding;
    EXPECT_LE(check.verdict, Verdict::kSkipped) << check.name;
    EXPECT_NE(check.finding, "") << check.name;
  }
}

TEST_F(DoctorHostTest, StoresThatDoNotFitAreAMistake) {
  Daemon(813, {"--role=holder", "--name=h2", "--store-capacity=12GiB", "--store-path=/data"});
  const Check check = Only(Judge(), "memory", Verdict::kFail);
  EXPECT_THAT(check.finding,
              AllOf(HasSubstr("21.8 GiB, this machine has 16.0 GiB"), HasSubstr("h2 (pid 813)")));
  EXPECT_THAT(check.remedy, StartsWith("store.capacity: 6GiB"));
}

TEST_F(DoctorHostTest, AControlGroupWithoutRoomIsAMistake) {
  Write("/proc/812/cgroup", "0::/system.slice/ckvd-holder@a.service");
  Write("/sys/fs/cgroup/system.slice/ckvd-holder@a.service/memory.max", "max");
  EXPECT_THAT(Wrong(Judge(), "memory"), IsEmpty());
  Write("/sys/fs/cgroup/system.slice/memory.max", "4294967296");
  const Check check = Only(Judge(), "memory", Verdict::kFail);
  EXPECT_THAT(check.finding, HasSubstr("allows 4.0 GiB"));
  EXPECT_THAT(check.remedy, HasSubstr("MemoryMax="));
}

TEST_F(DoctorHostTest, BlamesTheProcessThatReservesTooFewPages) {
  const std::string config =
      Config("role: holder\nname: h2\nstore: {capacity: 4GiB, pages: reserved}\n");
  Memory(16, 1024, 100, 0);
  const Check reserved = Only(Judge(config), "huge_pages", Verdict::kFail);
  EXPECT_THAT(reserved.finding, AllOf(HasSubstr("100 of 1024"), HasSubstr("takes 2048 for 4.0 GiB"),
                                      HasSubstr("it will not start")));
  EXPECT_THAT(reserved.remedy, AllOf(HasSubstr("sysctl -w vm.nr_hugepages=2972"),
                                     HasSubstr("/etc/sysctl.d/ckv.conf")));
  Config("role: holder\nname: h2\nstore.capacity: 4GiB\n");
  EXPECT_THAT(Only(Judge(config), "huge_pages", Verdict::kWarn).finding,
              HasSubstr("it will take none of them"));
  Memory(16, 4096, 2048, 0);
  EXPECT_THAT(Wrong(Judge(config), "huge_pages"), IsEmpty());
}

TEST_F(DoctorHostTest, ReportsReservedPagesThatAreNotUsed) {
  Memory(16, 1024, 1024, 0);
  EXPECT_THAT(Only(Judge(), "huge_pages", Verdict::kWarn).remedy,
              AllOf(HasSubstr("store.capacity: 2048MiB"), HasSubstr("vm.nr_hugepages=0")));
}

TEST_F(DoctorHostTest, TransparentPagesThatAreOffAreAMistake) {
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  EXPECT_THAT(Only(Judge(), "thp", Verdict::kWarn).remedy,
              StartsWith("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"));
}

TEST_F(DoctorHostTest, ReportsSwapThatRowsMayUse) {
  Memory(16, 0, 0, 8);
  EXPECT_THAT(Only(Judge(), "swap", Verdict::kWarn).finding, HasSubstr("8.0 GiB of swap"));
  Write("/proc/sys/vm/swappiness", "1");
  EXPECT_THAT(Wrong(Judge(), "swap"), IsEmpty());
  Write("/proc/812/status", "VmSwap:\t2048 kB");
  EXPECT_THAT(Only(Judge(), "swap", Verdict::kWarn).finding,
              HasSubstr("h1 (pid 812) has 2.0 MiB in swap"));
}

TEST_F(DoctorHostTest, LockedMemoryIsAMistakeBelowWhatVerbsPins) {
  Limits("812", "8388608", "65536");
  const Check check = Only(Judge(), "memlock", Verdict::kFail);
  EXPECT_THAT(check.finding, AllOf(HasSubstr("h1 (pid 812) may lock 8.0 MiB"),
                                   HasSubstr("256.0 GiB"), HasSubstr("store of 8.0 GiB")));
  EXPECT_THAT(check.remedy, HasSubstr("LimitMEMLOCK=infinity"));
  // A process that may lock without limit is not held to it.
  Write("/proc/812/status", "CapEff:\t0000000000004000");
  EXPECT_THAT(Wrong(Judge(), "memlock"), IsEmpty());
  EXPECT_THAT(
      Only(Judge(Config("role: holder\nfabrics: [tcp, verbs]\n")), "memlock", Verdict::kFail)
          .finding,
      HasSubstr("a process of this shell may lock 8.0 MiB"));
}

TEST_F(DoctorHostTest, TooFewFilesAreAMistake) {
  Limits("812", "unlimited", "1024");
  EXPECT_THAT(Only(Judge(), "nofile", Verdict::kWarn).finding,
              AllOf(HasSubstr("may open 1024 files"), HasSubstr("256 sessions")));
  Limits("812", "unlimited", "4");
  for (int fd = 0; fd < 4; ++fd) Link("/proc/812/fd/" + std::to_string(fd), "/dev/null");
  EXPECT_THAT(Only(Judge(), "nofile", Verdict::kFail).remedy, HasSubstr("prlimit --nofile=65536"));
}

TEST_F(DoctorHostTest, MoreThreadsThatPollThanProcessorsAreAMistake) {
  Daemon(813, {"--role=holder", "--name=h2"}, "CKV_COMPUTE_THREADS=2");
  EXPECT_THAT(Only(Judge(), "spin", Verdict::kWarn).finding,
              AllOf(HasSubstr("3 threads"), HasSubstr("on 2 processors")));
  Daemon(813, {"--role=holder", "--name=h2", "--spin-us", "0"}, "CKV_COMPUTE_THREADS=2");
  EXPECT_THAT(Wrong(Judge(), "spin"), IsEmpty());
  Daemon(813, {"--role=holder", "--name=h2", "--compute-threads=2"});
  Write("/proc/813/status", "Cpus_allowed_list:\t1");
  EXPECT_THAT(Only(Judge(), "spin", Verdict::kWarn).remedy, HasSubstr("compute_threads: 1"));
  Remove("/proc/812");
  Write("/proc/813/status", "Cpus_allowed_list:\t0-1");
  EXPECT_THAT(Wrong(Judge(), "spin"), IsEmpty());
  Write("/proc/813/cgroup", "0::/ckv");
  Write("/sys/fs/cgroup/ckv/cpu.max", "150000 100000");
  EXPECT_THAT(Only(Judge(), "spin", Verdict::kWarn).finding, HasSubstr("1.5 processors' time"));
}

TEST_F(DoctorHostTest, AHolderOnTwoNodesIsAMistake) {
  Write("/sys/devices/system/node/online", "0-1");
  Write("/sys/devices/system/node/node0/cpulist", "0");
  Write("/sys/devices/system/node/node1/cpulist", "1");
  EXPECT_THAT(Only(Judge(), "numa", Verdict::kWarn).finding, HasSubstr("nodes 0, 1"));
  Write("/proc/812/status", "Cpus_allowed_list:\t0");
  EXPECT_THAT(Wrong(Judge(), "numa"), IsEmpty());
  Daemon(812, {"--role=holder", "--name=h1", "--fabrics=verbs", "--verbs-device=mlx5_0"});
  Write("/proc/812/status", "Cpus_allowed_list:\t0");
  Write("/sys/class/infiniband/mlx5_0/device/numa_node", "1");
  const Check far = Only(Judge(), "numa", Verdict::kWarn);
  EXPECT_THAT(far.finding, HasSubstr("device mlx5_0 is on node 1"));
  EXPECT_THAT(far.remedy, HasSubstr("NUMAMask=1"));
  Write("/sys/class/infiniband/mlx5_0/device/numa_node", "-1");
  EXPECT_THAT(Wrong(Judge(), "numa"), IsEmpty());
}

TEST_F(DoctorHostTest, ReportsAnUnsynchronisedClock) {
  EXPECT_THAT(Only(Judge("", {true, false, Duration(0)}), "clock", Verdict::kWarn).remedy,
              HasSubstr("timedatectl set-ntp true"));
  EXPECT_THAT(Wrong(Judge("", {}), "clock"), IsEmpty());
}

TEST_F(DoctorHostTest, AProgramThatWasReplacedIsAMistake) {
  Link("/proc/812/exe", "/usr/bin/ckvd (deleted)");
  EXPECT_THAT(Only(Judge(), "binary", Verdict::kWarn).remedy, HasSubstr("kill -TERM 812"));
}

TEST_F(DoctorHostTest, VerbsWithoutAnActivePortIsAMistake) {
  Port("1: DOWN", "Ethernet");
  const Check down = Only(Judge(), "rdma", Verdict::kFail);
  EXPECT_THAT(down.finding, HasSubstr("port mlx5_0/1 is 1: DOWN"));
  EXPECT_THAT(down.remedy, StartsWith("ip link set dev eth7 up"));
  Port("2: INIT", "InfiniBand");
  EXPECT_THAT(Only(Judge(), "rdma", Verdict::kFail).remedy, HasSubstr("opensm"));
  Write("/sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE");
  EXPECT_THAT(Only(Judge(), "rdma", Verdict::kFail).finding, HasSubstr("mlx5_0, rxe0"));
  Remove("/sys/class/infiniband");
  EXPECT_THAT(Only(Judge(), "rdma", Verdict::kFail).remedy, HasSubstr("modprobe rdma_rxe"));
  Daemon(812, {"--role=holder", "--name=h1"});
  EXPECT_THAT(Wrong(Judge(), "rdma"), IsEmpty());
}

TEST_F(DoctorHostTest, APortWithoutRoceOverIpv4IsAMistake) {
  Gid(3, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1");
  EXPECT_THAT(Only(Judge(), "gid", Verdict::kWarn).remedy,
              StartsWith("ip address add ADDRESS/24 dev eth7"));
  Gid(3, "0000:0000:0000:0000:0000:0000:0000:0000", "");
  EXPECT_EQ(Only(Judge(), "gid", Verdict::kFail).finding,
            "port mlx5_0/1 has no GID: its network device has no address");
  Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0007", "RoCE v2");
  Gid(2, "0000:0000:0000:0000:0000:ffff:0a00:0007", "IB/RoCE v1");
  const std::vector<std::string> flags = {"--role=holder", "--name=h1", "--fabrics=verbs"};
  Daemon(812, flags, "CKV_VERBS_GID_INDEX=2");
  EXPECT_EQ(Only(Judge(), "gid", Verdict::kWarn).remedy, "verbs.gid_index: 3");
  Daemon(812, flags, "CKV_VERBS_GID_INDEX=5");
  EXPECT_EQ(Only(Judge(), "gid", Verdict::kFail).remedy, "verbs.gid_index: 3");
}

TEST_F(DoctorHostTest, APortThatSomebodyHasIsAMistake) {
  const std::string config = Config(
      "role: [holder]\nname: h2\nlisten: 127.0.0.1:7402\nmetrics: {address: '0.0.0.0:9464'}\n");
  EXPECT_THAT(Wrong(Judge(config), "ports"), IsEmpty());
  // 127.0.0.1:7402, and another port of the same address.
  Write("/proc/net/tcp6",
        "  sl  local_address rem_address   st\n"
        "   0: 0000000000000000FFFF00000100007F:1CEA 0:0 0A 0:0 00:0 0 0 0 4711 1\n"
        "   1: 0000000000000000FFFF00000100007F:1CEB 0:0 0A 0:0 00:0 0 0 0 4712 1");
  Write("/proc/77/comm", "nginx");
  Link("/proc/77/fd/6", "socket:[4711]");
  const Check check = Only(Judge(config), "ports", Verdict::kFail);
  EXPECT_THAT(check.finding, AllOf(HasSubstr("listen of"), HasSubstr("pid 77 (nginx) listens")));
  EXPECT_THAT(check.remedy, StartsWith("listen: 127.0.0.1:0"));
  // Who only speaks from a port does not have it.
  Write("/proc/net/tcp6",
        "  sl\n   0: 0000000000000000FFFF00000100007F:1CEA 0:0 01 0:0 00:0 0 0 0 1 1");
  Write("/proc/net/tcp", "  sl\n   0: 0700000A:24F8 0:0 0A 0:0 00:0 0 0 0 4713 1");
  EXPECT_THAT(Only(Judge(config), "ports", Verdict::kFail).finding, HasSubstr("metrics.address"));
}

TEST_F(DoctorHostTest, TwoOfOneNameOrStoreAreAMistake) {
  Daemon(813, {"--role=holder", "--name=h1", "--directory=10.0.0.1:7400"});
  EXPECT_THAT(Only(Judge(), "names", Verdict::kFail).finding,
              HasSubstr("h1 (pid 812) and h1 (pid 813) have the name h1"));
  // Members of two directories, or in two networks, may share a name.
  Daemon(813, {"--role=holder", "--name=h1", "--directory=10.0.0.2:7400"});
  EXPECT_THAT(Wrong(Judge(), "names"), IsEmpty());
  Daemon(813, {"--role=holder", "--name=h1", "--directory=10.0.0.1:7400"});
  Link("/proc/813/ns/net", "net:[7]");
  EXPECT_THAT(Wrong(Judge(), "names"), IsEmpty());
  Daemon(813, {"--role=holder", "--name=h2", "--store-path=/data"});
  Daemon(814, {"--role=holder", "--name=h3", "--store-path=/data"});
  EXPECT_THAT(Only(Judge(), "names", Verdict::kFail).finding, HasSubstr("the store.path /data"));
}

TEST_F(DoctorHostTest, ADaemonsSettingsAreItsFilesThenItsVariablesThenItsFlags) {
  const std::string config = Config(
      "role: holder\nname: filed\nstore.capacity: 3GiB\nspin_us: 7\n"
      "compute_threads: 2\nfabrics: [tcp, verbs]\n");
  Daemon(900, {"--name", "flagged"},
         "CKV_CONFIG=" + config + std::string(1, '\0') + "CKV_SPIN_US=8" + std::string(1, '\0') +
             "CKV_NAME=varied");
  const absl::StatusOr<HostView> view = LookAtHost(root_, config, kGoodClock);
  ASSERT_TRUE(view.ok());
  EXPECT_FALSE(view->planned) << "it runs";
  ASSERT_EQ(view->daemons.size(), 2u);
  const DaemonSettings& settings = view->daemons[1].settings;
  EXPECT_EQ(settings.origin, "flagged (pid 900)");
  EXPECT_EQ(settings.spin_us, 8u);
  EXPECT_EQ(settings.compute_threads, 2u);
  EXPECT_EQ(settings.store_capacity_bytes, uint64_t{3} << 30);
  EXPECT_EQ(settings.fabrics, (std::vector<std::string>{"tcp", "verbs"}));
  EXPECT_EQ(settings.data_listen, "127.0.0.1:0");
}

TEST_F(DoctorHostTest, AFileThatCannotBeReadIsAnError) {
  EXPECT_EQ(LookAtHost(root_, root_ + "/none", kGoodClock).status().code(),
            absl::StatusCode::kNotFound);
  const absl::Status broken = LookAtHost(root_, Config("role: [holder\n"), kGoodClock).status();
  EXPECT_EQ(broken.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(broken.message()), HasSubstr("h2.yaml:"));
}

// Two tables of defaults must not differ.
TEST_F(DoctorHostTest, DefaultsAreThoseOfCkvd) {
  const ckv::Config config;
  const DaemonSettings settings;
  EXPECT_EQ(settings.fabrics, config.fabrics);
  EXPECT_EQ(settings.store_pages, config.store_pages);
  EXPECT_EQ(settings.store_capacity_bytes, config.store_capacity_bytes);
  EXPECT_EQ(settings.store_map_bytes_max, config.store_map_bytes_max);
  EXPECT_EQ(settings.requester_near_bytes, config.requester_near_bytes);
  EXPECT_EQ(settings.store_stripe_percent, config.store_stripe_percent);
  EXPECT_EQ(settings.verbs_port, config.verbs_port);
  EXPECT_EQ(settings.verbs_gid_index, config.verbs_gid_index);
  EXPECT_EQ(settings.compute_threads, config.compute_threads);
  EXPECT_EQ(settings.spin_us, config.spin_us);
  EXPECT_EQ(settings.session_count_max, config.session_count_max);
}

TEST_F(DoctorHostTest, TheCommandShowsRemediesAndExitsWith7) {
  const auto run = [this](std::vector<std::string> arguments) {
    std::ostringstream out, err;
    Ctl ctl;
    ctl.out = &out;
    ctl.err = &err;
    ctl.host_root = root_;
    const int code = RunCtl(ctl, std::move(arguments));
    return std::make_tuple(code, out.str(), err.str());
  };
  Memory(16, 0, 0, 8);  // a warning
  EXPECT_EQ(std::get<0>(run({"doctor", "host"})), 0);
  EXPECT_EQ(std::get<0>(run({"doctor", "host", "--strict"})), 7);
  Limits("812", "8388608", "65536");
  const auto [code, out, err] = run({"doctor", "host"});
  EXPECT_EQ(code, 7);
  EXPECT_THAT(out, AllOf(HasSubstr("fail  memlock"),
                         HasSubstr("-> in the daemon's unit: "
                                   "LimitMEMLOCK=infinity"),
                         HasSubstr("1 failed")));
  EXPECT_THAT(err, HasSubstr("host memlock"));
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  const auto [json_code, text, error] = run({"doctor", "host", "-o", "json"});
  EXPECT_EQ(json_code, 7);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["fail_count"], 1);
  bool told = false;
  for (const Json& check : json["checks"]) {
    if (check["name"] == "memlock") told = check["verdict"] == "fail" && check["remedy"] != "";
  }
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace ckv::ctl::doctor
