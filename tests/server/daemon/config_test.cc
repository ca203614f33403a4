// Goal: what an operator writes is read as meant, and what cannot be meant is refused with its
// source. Method: ReadConfig over arguments, an environment given as a map, and files in a
// directory of the test's own.

#include "server/daemon/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "attention/mla_partial.h"
#include "client/grpc/default_addresses.h"
#include "server/daemon/config_options.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Environment = std::map<std::string, std::string>;

absl::StatusOr<ParsedConfig> Read(const std::vector<std::string>& arguments,
                                  const Environment& environment = {}) {
  return ReadConfig(arguments, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

std::string ErrorsOf(const std::vector<std::string>& arguments,
                     const Environment& environment = {}) {
  const auto parsed = Read(arguments, environment);
  EXPECT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

std::string WriteFile(const std::string& name, const std::string& text) {
  std::string path = test::TempPath(name);
  std::ofstream(path) << text;
  return path;
}

TEST(ConfigTest, FlagsWinOverEnvironmentWhichWinsOverTheFile) {
  const std::string path = WriteFile("precedence.yaml",
                                     "role: [directory, holder]\n"
                                     "name: from-file\n"
                                     "store:\n"
                                     "  capacity: 2GiB\n"
                                     "  chunk_count_max: 7\n"
                                     "spin_us: 1\n");
  const auto parsed = Read({"--config", path, "--name=from-flag"},
                           {{"CKV_NAME", "from-env"}, {"CKV_STORE_CAPACITY", "3MiB"}});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const Config& config = parsed->config;
  EXPECT_THAT(config.role, ElementsAre("directory", "holder"));
  EXPECT_EQ(config.name, "from-flag");
  EXPECT_EQ(config.store_capacity_bytes, 3u << 20);
  EXPECT_EQ(config.store_chunk_count_max, 7u);
  EXPECT_EQ(config.spin_us, 1u);
  EXPECT_EQ(config.lane_slot_count, LaneShape{}.slot_count);
  EXPECT_EQ(parsed->action, ConfigAction::kRun);
}

TEST(ConfigTest, TheFileCanBeNamedByTheEnvironment) {
  const std::string path = WriteFile("named.yaml", "role: directory\nlog.level: debug\n");
  const auto parsed = Read({}, {{"CKV_CONFIG", path}});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.log_level, "debug");
}

TEST(ConfigTest, AKernelTargetIsOneOfThisMachine) {
  const std::vector<std::string> base = {"--role=directory"};
  EXPECT_EQ(Read(base)->config.kernel_target, "auto");
  const std::string target(KernelTargets().back());
  const std::string path = WriteFile("target.yaml", "kernel_target: " + target + "\n");
  for (const auto& parsed : {Read({"--role=directory", "--kernel-target=" + target}),
                             Read(base, {{"CKV_KERNEL_TARGET", target}}),
                             Read({"--role=directory", "--config", path})}) {
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->config.kernel_target, target);
  }
  const auto printed = Read({"--role=directory", "--kernel-target=" + target, "--check-config"});
  EXPECT_THAT(printed->text, HasSubstr("kernel_target: \"" + target + "\"  # --kernel-target"));
  // A start and --check-config refuse it alike.
  for (const std::string wrong : {"PDP11", "Auto", " "}) {
    for (const std::string& more : {std::string("--check-config"), std::string("--name=n")}) {
      const std::string errors = ErrorsOf({base[0], more}, {{"CKV_KERNEL_TARGET", wrong}});
      EXPECT_THAT(errors, HasSubstr("kernel_target: no kernel target '" + wrong + "'"));
      for (const std::string_view known : KernelTargets())
        EXPECT_THAT(errors, HasSubstr(std::string(known)));
    }
  }
}

TEST(ConfigTest, AFormerKeyIsTakenWithAWarning) {
  const std::string path =
      WriteFile("former.yaml", "role: requester\ndirectory: h:1\nengine_count_max: 3\n");
  const auto from_file = Read({"--config", path});
  ASSERT_TRUE(from_file.ok()) << from_file.status();
  EXPECT_EQ(from_file->config.call_count_max, 3u);
  EXPECT_THAT(from_file->warnings, ElementsAre(HasSubstr("call_count_max is the name now")));
  const auto from_flag = Read({"--role=requester", "--directory=h:1", "--engine-count-max=4"},
                              {{"CKV_ENGINE_COUNT_MAX", "5"}});
  ASSERT_TRUE(from_flag.ok()) << from_flag.status();
  EXPECT_EQ(from_flag->config.call_count_max, 4u);
  EXPECT_EQ(from_flag->warnings.size(), 2u);
  // The key of today wins.
  const auto both =
      Read({"--role=requester", "--directory=h:1", "--engine-count-max=4", "--call-count-max=6"});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->config.call_count_max, 6u);
}

TEST(ConfigTest, AnUnknownKeyNamesItsLineAndTheNearestOne) {
  const std::string path = WriteFile("unknown.yaml",
                                     "role: directory\n"
                                     "store:\n"
                                     "  capasity: 1GiB\n"
                                     "zzzzzzzzzzzzzzzzzz: 1\n");
  EXPECT_THAT(ErrorsOf({"--config", path}),
              AllOf(HasSubstr("unknown.yaml:3: store.capasity: unknown key; did you mean "
                              "store.capacity?"),
                    HasSubstr("unknown.yaml:4: zzzzzzzzzzzzzzzzzz: unknown key; --help lists")));
}

TEST(ConfigTest, AValueForASectionNamesItsKeys) {
  const std::string path = WriteFile("section.yaml", "role: directory\nstore: 5\n");
  EXPECT_THAT(ErrorsOf({"--config", path}),
              AllOf(HasSubstr("section.yaml:2: store: a section, not a value; it has "),
                    HasSubstr("store.path, store.capacity"), Not(HasSubstr("lane."))));
}

TEST(ConfigTest, TakesSeveralDirectories) {
  EXPECT_EQ(Read({"--role=holder", "--directory=h:1,[::1]:2"})->config.directory, "h:1,[::1]:2");
  const std::string path =
      WriteFile("several.yaml", "role: holder\ndirectory: [\"h:1\", \"[::1]:2\"]\n");
  EXPECT_EQ(Read({"--config", path})->config.directory, "h:1,[::1]:2");
}

// `directory` is the address of the directory, and the section of one that this process is.
TEST(ConfigTest, DirectoryIsAValueAndASection) {
  const std::string path = WriteFile("directory.yaml",
                                     "role: directory\n"
                                     "directory:\n"
                                     "  path: /var/lib/ckv/directory\n");
  auto parsed = Read({"--config", path});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.directory_path, "/var/lib/ckv/directory");
  EXPECT_EQ(parsed->config.directory, "");
  const std::string both = WriteFile("both.yaml",
                                     "role: [directory, holder]\n"
                                     "directory: h:1\n"
                                     "directory.path: /d\n");
  parsed = Read({"--config", both});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.directory_path, "/d");
  EXPECT_EQ(parsed->config.directory, "h:1");
  EXPECT_THAT(ErrorsOf({"--role=holder", "--directory=h:1", "--directory-path=/d"}),
              HasSubstr("directory.path: this process is no directory"));
}

TEST(ConfigTest, AnUnknownFlagNamesTheNearestOne) {
  EXPECT_THAT(ErrorsOf({"--role=directory", "--listn", "127.0.0.1:0"}),
              AllOf(HasSubstr("--listn: unknown flag; did you mean --listen?"),
                    Not(HasSubstr("127.0.0.1:0"))));
  EXPECT_THAT(ErrorsOf({"holder"}), HasSubstr("'holder': ckvd takes flags only"));
  EXPECT_THAT(ErrorsOf({"--role=directory", "--name"}), HasSubstr("--name"));
}

TEST(ConfigTest, AnotherToolsEnvironmentIsNoError) {
  EXPECT_TRUE(Read({"--role=directory"}, {{"CKV_REQUESTER", "127.0.0.1:1"}}).ok());
}

TEST(ConfigTest, EveryErrorIsReportedWithItsSource) {
  const std::string path = WriteFile("errors.yaml",
                                     "role: directory\n"
                                     "store:\n"
                                     "  capacity: lots\n");
  const std::string errors = ErrorsOf({"--config", path, "--lane-slot-count=257"},
                                      {{"CKV_LEASE_TTL", "3"}, {"CKV_FABRICS", "shm,carrier"}});
  EXPECT_THAT(errors,
              AllOf(HasSubstr("errors.yaml:3: store.capacity: 'lots' is not a size"),
                    HasSubstr("--lane-slot-count: 257 is out of range: 1 to 256"),
                    HasSubstr("CKV_LEASE_TTL: '3' is no length of time"),
                    HasSubstr("CKV_FABRICS: 'carrier' is not one of shm,tcp,verbs,loopback")));
}

TEST(ConfigTest, AValueThatLosesIsCheckedAllTheSame) {
  EXPECT_THAT(ErrorsOf({"--role=directory", "--spin-us=5"}, {{"CKV_SPIN_US", "-1"}}),
              HasSubstr("CKV_SPIN_US: '-1' is not a whole number"));
}

TEST(ConfigTest, FilesThatAreNoConfig) {
  EXPECT_THAT(ErrorsOf({"--config", "/nonexistent/ckvd.yaml"}),
              HasSubstr("/nonexistent/ckvd.yaml: No such file"));
  EXPECT_THAT(ErrorsOf({"--config", WriteFile("bad.yaml", "role: directory\nname: [a\n")}),
              HasSubstr("bad.yaml:"));
  EXPECT_THAT(ErrorsOf({"--config", WriteFile("list.yaml", "- a\n- b\n")}),
              HasSubstr("list.yaml:1: a map of keys is expected"));
  EXPECT_THAT(ErrorsOf({"--config", WriteFile("null.yaml", "role: directory\nname:\n")}),
              HasSubstr("null.yaml:2: name: no value"));
  EXPECT_THAT(ErrorsOf({"--config", WriteFile("twice.yaml",
                                              "role: directory\nstore.capacity: 1GiB\n"
                                              "store:\n  capacity: 1GiB\n")}),
              HasSubstr("twice.yaml:4: store.capacity: given twice"));
  EXPECT_THAT(ErrorsOf({"--config", WriteFile("map.yaml", "role: directory\nname: {a: b}\n")}),
              HasSubstr("map.yaml:2: name: a value is expected"));
  EXPECT_TRUE(Read({"--role=directory", "--config", WriteFile("empty.yaml", "")}).ok());
}

TEST(ConfigTest, FlagsMayBeWrittenAsKeys) {
  const auto parsed = Read({"--role=directory", "--store.capacity=1MiB", "--ready_file=/a_b.c"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.store_capacity_bytes, 1u << 20);
  EXPECT_EQ(parsed->config.ready_file, "/a_b.c");
}

TEST(ConfigTest, AnEmptyValueIsAValue) {
  const auto parsed = Read({"--role=directory", "--metrics-address=", "--name=n"},
                           {{"CKV_METRICS_ADDRESS", "127.0.0.1:9464"}});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.metrics_address, "");
  EXPECT_EQ(parsed->config.name, "n");
}

// One row a text: what it becomes, or nothing where it is refused.
TEST(ConfigTest, Sizes) {
  const std::map<std::string, std::optional<uint64_t>> cases = {
      {"1048576", 1u << 20},
      {"1MiB", 1u << 20},
      {"2048KiB", 2u << 20},
      {"3 GiB", 3ull << 30},
      {"64TiB", 64ull << 40},
      {"65TiB", std::nullopt},
      {"1048575", std::nullopt},
      {"1MB", std::nullopt},
      {"-1MiB", std::nullopt},
      {"MiB", std::nullopt},
      {"", std::nullopt},
      {"18446744073709551616", std::nullopt},
      {"18446744073709551615TiB", std::nullopt},
      {"1MiB ", std::nullopt},
  };
  for (const auto& [text, expected] : cases) {
    SCOPED_TRACE(text);
    const auto parsed = Read({"--role=directory", "--store-capacity=" + text});
    EXPECT_EQ(parsed.ok(), expected.has_value()) << parsed.status();
    if (parsed.ok() && expected) {
      EXPECT_EQ(parsed->config.store_capacity_bytes, *expected);
    }
  }
}

TEST(ConfigTest, Durations) {
  const std::map<std::string, std::optional<int64_t>> cases = {
      {"500ms", 500'000'000},    {"3s", 3'000'000'000},  {"1min", 60'000'000'000},
      {"600000us", 600'000'000}, {"1m", 60'000'000'000}, {"1.5s", 1'500'000'000},
      {"499ms", std::nullopt},   {"61s", std::nullopt},  {"3", std::nullopt},
      {"s", std::nullopt},       {"3h", std::nullopt},   {"307445734561825861min", std::nullopt},
  };
  for (const auto& [text, expected] : cases) {
    SCOPED_TRACE(text);
    const auto parsed = Read({"--role=directory", "--lease-ttl=" + text});
    EXPECT_EQ(parsed.ok(), expected.has_value()) << parsed.status();
    if (parsed.ok() && expected) {
      EXPECT_EQ(parsed->config.lease_ttl.count(), *expected);
    }
  }
}

TEST(ConfigTest, AddressesAndNames) {
  for (const char* bad : {"localhost", ":7311", "h:", "h:x", "h:65536", "h:1x", "h:-1"}) {
    EXPECT_FALSE(Read({"--role=directory", std::string("--listen=") + bad}).ok()) << bad;
  }
  EXPECT_TRUE(Read({"--role=directory", "--listen=[::1]:0"}).ok());
  EXPECT_THAT(ErrorsOf({"--role=holder", "--directory=h:0"}), HasSubstr("port from 1 to 65535"));
  EXPECT_THAT(ErrorsOf({"--role=directory", "--name=a/b"}), HasSubstr("'a/b' is not a name"));
}

// ckvctl looks for a requester and for a directory at these addresses.
TEST(ConfigTest, TheDefaultAddressFollowsFromTheRoles) {
  const std::pair<const char*, std::string_view> cases[] = {
      {"--role=requester", kDefaultRequesterAddress},
      {"--role=directory,holder,requester", kDefaultRequesterAddress},
      {"--role=directory", kDefaultDirectoryAddress},
      {"--role=directory,holder", kDefaultDirectoryAddress},
      {"--role=holder", kDefaultHolderAddress}};
  const std::string help = Read({"--help"})->text;
  for (const auto& [role, address] : cases) {
    const auto parsed = Read({role, "--directory=h:1"});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->config.listen, address) << role;
    EXPECT_THAT(help, HasSubstr(std::string(address)));
  }
  EXPECT_EQ(Read({"--role=holder", "--directory=h:1", "--listen=h:2"})->config.listen, "h:2");
}

TEST(ConfigTest, AMissingNameGivesFieldAndPlace) {
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  const auto name_of = [](std::vector<std::string> arguments) {
    arguments.emplace_back("--directory=h:1");
    const auto parsed = Read(arguments);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? parsed->config.name : "";
  };
  EXPECT_EQ(name_of({"--role=holder", "--listen=127.0.0.1:7411"}),
            std::string(host) + "-holder-7411");
  EXPECT_EQ(name_of({"--role=requester,holder"}), std::string(host) + "-holder-requester-7311");
  EXPECT_EQ(name_of({"--role=holder", "--listen=127.0.0.1:0"}), "") << "known once it is bound";
  EXPECT_EQ(name_of({"--role=holder", "--name=h1"}), "h1");
}

TEST(ConfigTest, WarnsOfProbableMistakes) {
  const auto parsed = ReadConfig(
      std::vector<std::string>{"--role=directory,holder", "--store-capacity=64TiB"},
      [](const std::string&) { return std::nullopt; },
      std::vector<std::string>{"PATH", "CKV_STORE_CAPACTY", "CKV_REQUESTER", "CKV_DIRECTORY",
                               "CKV_CONFIG", "CKV_TEST_VERBS", "CKV_ZZZZZZZZZZZZZZ"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(
      parsed->warnings,
      ElementsAre("CKV_STORE_CAPACTY: unknown variable, ignored; did you mean CKV_STORE_CAPACITY?",
                  "CKV_ZZZZZZZZZZZZZZ: unknown variable, ignored; --help lists what there is",
                  AllOf(HasSubstr("store.capacity: 67108864 MiB"), HasSubstr("memory"))));
  EXPECT_THAT(Read({"--role=directory,holder", "--store-capacity=1MiB"})->warnings,
              testing::IsEmpty());
}

TEST(ConfigTest, LoopbackAloneIsForAProcessThatHasBothEnds) {
  for (const char* role : {"--role=holder", "--role=requester", "--role=directory,holder"}) {
    EXPECT_THAT(ErrorsOf({role, "--directory=h:1", "--fabrics=loopback"}),
                HasSubstr("fabrics: loopback does not leave this process"));
  }
  EXPECT_TRUE(Read({"--role=directory,holder,requester", "--fabrics=loopback"}).ok());
  EXPECT_TRUE(Read({"--role=holder", "--directory=h:1", "--fabrics=loopback,tcp"}).ok());
}

TEST(ConfigTest, ChecksOptionsTogether) {
  EXPECT_THAT(ErrorsOf({"--role=requester", "--directory=h:1", "--fabric=verbs"}),
              HasSubstr("fabric: verbs is not among fabrics"));
  EXPECT_THAT(ErrorsOf({"--role=directory", "--fabric=wire"}), HasSubstr("'wire' is not one of"));
  EXPECT_THAT(ErrorsOf({"--role=directory,holder", "--store-shadow-percent=5"}),
              HasSubstr("name a store.path"));
  EXPECT_THAT(ErrorsOf({}), HasSubstr("role: choose what this process is"));
  EXPECT_THAT(ErrorsOf({"--role=holder"}), HasSubstr("directory: a holder or requester needs"));
  EXPECT_TRUE(Read({"--role=directory,holder"}).ok());
  EXPECT_THAT(ErrorsOf({"--role=holder,holder"}), HasSubstr("'holder' is there twice"));
  EXPECT_THAT(ErrorsOf({"--role=directory", "--listen=0.0.0.0:1"}), HasSubstr("advertise: "));
  EXPECT_TRUE(Read({"--role=directory", "--listen=0.0.0.0:1", "--advertise=h:1"}).ok());
}

// Every option but oracle.file, each other than its default.
std::vector<std::string> EveryOption() {
  return {"--role=directory,requester",
          "--name=n",
          "--listen=127.0.0.1:1",
          "--advertise=h:2",
          "--directory=d:3",
          "--directory-path=/var/lib/ckv/directory",
          "--data-listen=h:4",
          "--fabrics=tcp",
          "--fabric=tcp",
          "--rdma-fallback=tcp",
          "--verbs-device=mlx5_0",
          "--verbs-port=2",
          "--verbs-gid-index=3",
          "--verbs-mtu=1024",
          "--verbs-timeout=15",
          "--verbs-retry-count=5",
          "--tcp-busy-poll-us=50",
          "--store-map-bytes-max=2MiB",
          "--queue-request-count-max=7",
          "--store-path=/var/lib/ckv",
          "--store-capacity=3MiB",
          "--store-pages=small",
          "--store-shadow-percent=20",
          "--store-stripe-percent=7",
          "--store-chunk-count-max=5",
          "--store-scrub-bytes-per-second=2MiB",
          "--replicas-percent=50",
          "--label-host=h1",
          "--label-rack=r1",
          "--label-zone=z1",
          "--repair-bytes-per-second=2MiB",
          "--repair-flow-count=3",
          "--repair-loss-after=7s",
          "--repair-drop-after=7min",
          "--repair-fill-new-holders=off",
          "--repair-copy-hot-chunks=off",
          "--directory-expiry-grace=9s",
          "--compute-threads=2",
          "--kernel-target=AMX_MODEL",
          "--backend=cpu",
          "--session-count-max=3",
          "--batch-request-count-max=4",
          "--spin-us=0",
          "--lane-slot-count=2",
          "--lane-request-bytes-max=8KiB",
          "--lane-reply-bytes-max=12KiB",
          "--call-count-max=3",
          "--rpc-thread-count-max=17",
          "--lease-ttl=1500ms",
          "--drain-timeout=1min",
          "--default-timeout=9ms",
          "--requester-profile=/etc/profile.json",
          "--requester-local-cache-bytes=3GiB",
          "--oracle-address=o:5",
          "--oracle-host=rack7",
          "--metrics-address=127.0.0.1:9464",
          "--log-level=warn",
          "--log-format=json",
          "--trace-path=/tmp/spans",
          "--trace-file-bytes-max=2MiB",
          "--trace-sample-one-in=100",
          "--ready-file=/tmp/a \"b\" \\c"};
}

// Goal: --check-config is a file that means the same. Method: print, read back, print again; and
// change every option from its default on the way, so that none is forgotten.
TEST(ConfigTest, CheckConfigPrintsAFileThatReadsBack) {
  const std::vector<std::string> arguments = EveryOption();
  // oracle.file excludes oracle.address, and directory.store directory.path.
  ASSERT_EQ(arguments.size() + 2, ConfigOptions().size());
  std::vector<std::string> with_check = arguments;
  with_check.emplace_back("--check-config");
  const auto first = Read(with_check);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->action, ConfigAction::kPrint);
  EXPECT_THAT(first->text, HasSubstr("spin_us: 0  # --spin-us"));

  const auto second = Read({"--config", WriteFile("printed.yaml", first->text)});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(ConfigToYaml(second->config), ConfigToYaml(first->config));
  const Config defaults;
  for (const OptionSpec& option : ConfigOptions()) {
    if (option.key != "oracle.file" && option.key != "directory.store") {
      EXPECT_NE(FormatOption(option, second->config), FormatOption(option, defaults)) << option.key;
    }
    EXPECT_EQ(FormatOption(option, second->config), FormatOption(option, first->config))
        << option.key;
  }
}

TEST(ConfigTest, RefusesTwoOracles) {
  const auto file =
      Read({"--role=requester", "--directory=d:1", "--oracle-file=/etc/network.json"});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->config.oracle_file, "/etc/network.json");
  EXPECT_THAT(ErrorsOf({"--role=directory", "--oracle-file=f", "--oracle-address=o:1"}),
              HasSubstr("oracle.file: there is an oracle.address too"));
}

TEST(ConfigTest, DefaultsAreValuesThatTheTableTakes) {
  Config config;
  std::set<std::string_view> keys;
  for (const OptionSpec& option : ConfigOptions()) {
    EXPECT_TRUE(keys.insert(option.key).second) << option.key;
    const std::string text = FormatOption(option, config);
    if (text.empty()) continue;
    EXPECT_TRUE(AssignOption(option, text, config).ok()) << option.key << " " << text;
    EXPECT_EQ(FormatOption(option, config), text);
  }
}

TEST(ConfigTest, HelpHasEveryName) {
  const auto parsed = Read({"--help"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->action, ConfigAction::kPrint);
  const std::string help = absl::StrReplaceAll(parsed->text, {{"\n      ", " "}});  // unwrapped
  for (const OptionSpec& option : ConfigOptions()) {
    EXPECT_THAT(help, AllOf(HasSubstr(OptionFlagName(option.key)),
                            HasSubstr(OptionEnvironmentName(option.key)),
                            HasSubstr(std::string(option.help))));
  }
  EXPECT_THAT(help, AllOf(HasSubstr("CKV_VERBS_PORT; 1 to 255"), Not(HasSubstr("; ,")),
                          HasSubstr("500ms to 1m")));
  // Commands are for copying, and stay whole.
  for (const absl::string_view line : absl::StrSplit(parsed->text, '\n')) {
    EXPECT_TRUE(line.size() <= 80 || absl::StrContains(line, "ckvd --")) << line;
  }
  EXPECT_EQ(Read({"--version"})->text, "ckvd 0.1.0\n");
}

}  // namespace
}  // namespace ckv
