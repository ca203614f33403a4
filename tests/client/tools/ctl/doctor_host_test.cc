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

#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/doctor/host_checks.h"
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

// A machine of two processors and 16 GiB, where one holder runs and all is well.
class DoctorHostTest : public testing::Test {
 protected:
  DoctorHostTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = test::TempPath(std::string("machine-") + test->name());
    Write("/sys/devices/system/cpu/online", "0-1");
    Write("/proc/meminfo", "MemTotal:       16777216 kB");
    Daemon(812, {"--role=holder", "--name=h1", "--listen=10.0.0.7:7401", "--store-capacity=8GiB",
                 "--store-path=/var/lib/ckv/h1"});
  }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text << "\n";
  }
  void Remove(const std::string& path) { std::filesystem::remove_all(root_ + path); }
  void Daemon(int pid, const std::vector<std::string>& flags, const std::string& variables = "") {
    const std::string process = "/proc/" + std::to_string(pid);
    Write(process + "/comm", "ckvd");
    std::string line = "/usr/bin/ckvd";
    for (const std::string& flag : flags) line += std::string(1, '\0') + flag;
    Write(process + "/cmdline", line + std::string(1, '\0'));
    Write(process + "/environ", variables);
    Write(process + "/status", "Cpus_allowed_list:\t0-1");
  }
  std::string Config(const std::string& yaml) {
    Write("/etc/h2.yaml", yaml);
    return root_ + "/etc/h2.yaml";
  }

  Checks Judge() {
    const absl::StatusOr<HostView> view = LookAtHost(root_, "");
    EXPECT_TRUE(view.ok()) << view.status();
    return view.ok() ? JudgeHost(*view) : Checks();
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

TEST_F(DoctorHostTest, WarnsOfDaemonsThatLoseTheirDataOnARestart) {
  Daemon(813, {"--role=directory", "--name=d", "--directory-path=/var/lib/ckv/directory"});
  EXPECT_THAT(Wrong(Judge(), "durable"), IsEmpty());
  Daemon(813, {"--role=directory", "--name=d"});
  EXPECT_THAT(Only(Judge(), "durable", Verdict::kWarn).remedy, StartsWith("directory.path: "));
  Remove("/proc/813");
  Daemon(812, {"--role=holder", "--name=h1"});
  EXPECT_THAT(Only(Judge(), "durable", Verdict::kWarn).finding,
              HasSubstr("a restart of h1 (pid 812)"));
  // Its variables may name a folder, if they can be read.
  Daemon(812, {"--role=holder", "--name=h1"}, "CKV_STORE_PATH=/data");
  EXPECT_THAT(Wrong(Judge(), "durable"), IsEmpty());
  Daemon(812, {"--role=holder", "--name=h1"});
  Remove("/proc/812/environ");
  EXPECT_THAT(Wrong(Judge(), "durable"), IsEmpty());
}

TEST_F(DoctorHostTest, ADaemonsSettingsAreItsFilesThenItsVariablesThenItsFlags) {
  const std::string config = Config(
      "role: holder\nname: filed\nstore.capacity: 3GiB\nspin_us: 7\n"
      "compute_threads: 2\n");
  Daemon(900, {"--name", "flagged"},
         "CKV_CONFIG=" + config + std::string(1, '\0') + "CKV_SPIN_US=8" + std::string(1, '\0') +
             "CKV_NAME=varied");
  const absl::StatusOr<HostView> view = LookAtHost(root_, config);
  ASSERT_TRUE(view.ok());
  EXPECT_FALSE(view->planned) << "it runs";
  ASSERT_EQ(view->daemons.size(), 2u);
  const DaemonSettings& settings = view->daemons[1].settings;
  EXPECT_EQ(settings.origin, "flagged (pid 900)");
  EXPECT_EQ(settings.spin_us, 8u);
  EXPECT_EQ(settings.compute_threads, 2u);
  EXPECT_EQ(settings.store_capacity_bytes, uint64_t{3} << 30);
  EXPECT_EQ(settings.listen, "127.0.0.1:7401");
}

TEST_F(DoctorHostTest, AFileThatCannotBeReadIsAnError) {
  EXPECT_EQ(LookAtHost(root_, root_ + "/none").status().code(), absl::StatusCode::kNotFound);
  const absl::Status broken = LookAtHost(root_, Config("role: [holder\n")).status();
  EXPECT_EQ(broken.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(broken.message()), HasSubstr("h2.yaml:"));
}

// Two tables of defaults must not differ.
TEST_F(DoctorHostTest, DefaultsAreThoseOfCkvd) {
  const ckv::Config config;
  const DaemonSettings settings;
  EXPECT_EQ(settings.store_capacity_bytes, config.store_capacity_bytes);
  EXPECT_EQ(settings.store_map_bytes_max, config.store_map_bytes_max);
  EXPECT_EQ(settings.requester_local_cache_bytes, config.requester_local_cache_bytes);
  EXPECT_EQ(settings.store_stripe_percent, config.store_stripe_percent);
  EXPECT_EQ(settings.compute_threads, config.compute_threads);
  EXPECT_EQ(settings.spin_us, config.spin_us);
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
  Daemon(812, {"--role=holder", "--name=h1"});  // a warning: it keeps its chunks in memory
  EXPECT_EQ(std::get<0>(run({"doctor"})), 0);
  EXPECT_EQ(std::get<0>(run({"doctor", "--strict"})), 7);
  Daemon(812, {"--role=holder", "--name=h1", "--store-capacity=32GiB"});
  const auto [code, out, err] = run({"doctor"});
  EXPECT_EQ(code, 7);
  EXPECT_THAT(
      out, AllOf(HasSubstr("2 processors, 16.0 GiB of memory, 1 ckvd"), HasSubstr("fail  memory"),
                 HasSubstr("-> store.capacity: "), HasSubstr("1 failed")));
  EXPECT_THAT(err, HasSubstr("memory"));
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  const auto [json_code, text, error] = run({"doctor", "-o", "json"});
  EXPECT_EQ(json_code, 7);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["fail_count"], 1);
  bool reported = false;
  for (const Json& check : json["checks"]) {
    if (check["name"] == "memory") reported = check["verdict"] == "fail" && check["remedy"] != "";
  }
  EXPECT_TRUE(reported);
}

}  // namespace
}  // namespace ckv::ctl::doctor
