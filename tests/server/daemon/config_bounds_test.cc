// Goal: --check-config takes exactly what a start takes.
// Method: each option that has bounds is set to either of them, read as a flag, and a daemon of all
// roles is started with it; where a part owns the limit, one more is given past the reader.

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "server/daemon/config_options.h"
#include "tests/server/services/services_fixture.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

bool HasBounds(const OptionSpec& option) {
  return option.kind == OptionKind::kCount || option.kind == OptionKind::kBytes ||
         option.kind == OptionKind::kDuration;
}

// As far as `option` lets it, a daemon that starts in no time.
Config Base(const OptionSpec& option) {
  Config config = test::ConfigOf({"directory", "holder", "requester"}, "all");
  config.store_capacity_bytes = 1 << 20;
  if (option.key == "store.shadow_percent") config.store_path = test::TempPath("bounds");
  return config;
}

// Writes the configuration as a file and reads it back.
absl::StatusOr<ParsedConfig> Read(const OptionSpec& option, const std::string& text) {
  const std::string path = test::TempPath("bounds.yaml");
  std::ofstream(path) << ConfigToYaml(Base(option));
  return ReadConfig(
      std::vector<std::string>{"--config", path, OptionFlagName(option.key) + "=" + text},
      [](const std::string&) { return std::nullopt; });
}

std::string TextOf(const OptionSpec& option, uint64_t value) {
  return std::to_string(value) + (option.kind == OptionKind::kDuration ? "ms" : "");
}

TEST(ConfigBounds, EveryAcceptedValueStartsAndRefusedOnesDoNot) {
  // More memory than there is: only the machine can say.
  const std::set<std::string_view> of_the_machine = {"store.capacity", "store.map_bytes_max"};
  for (const OptionSpec& option : ConfigOptions()) {
    if (!HasBounds(option)) continue;
    for (const uint64_t value : {option.min, option.max}) {
      if (value == option.max && of_the_machine.contains(option.key)) continue;
      SCOPED_TRACE(testing::Message() << option.key << " = " << value);
      const std::string text = TextOf(option, value);
      Config config = Base(option);
      ASSERT_TRUE(AssignOption(option, text, config).ok());
      const auto read = Read(option, text);
      const auto started = Daemon::Start(config);
      EXPECT_EQ(started.ok(), read.ok()) << started.status() << " but " << read.status();
    }
    EXPECT_FALSE(Read(option, TextOf(option, option.max + 1)).ok()) << option.key;
    if (option.min > 0) {
      EXPECT_FALSE(Read(option, TextOf(option, option.min - 1)).ok()) << option.key;
    }
  }
}

TEST(ConfigBounds, ThePartsRefuseOneMore) {
  const std::set<std::string_view> owned = {
      "store.chunk_count_max",   "compute_threads", "session_count_max", "batch_request_count_max",
      "queue_request_count_max", "lane.slot_count", "call_count_max"};
  size_t found = 0;
  for (const OptionSpec& option : ConfigOptions()) {
    if (!owned.contains(option.key)) continue;
    ++found;
    Config config = Base(option);
    config.*std::get<uint32_t Config::*>(option.member) = static_cast<uint32_t>(option.max) + 1;
    EXPECT_TRUE(absl::IsInvalidArgument(Daemon::Start(config).status())) << option.key;
  }
  EXPECT_EQ(found, owned.size());
}

// Each alone is in bounds, and the lane is too large.
TEST(ConfigBounds, ALaneIsJudgedAsAWhole) {
  const std::vector<std::string> lane = {"--role=directory,requester", "--lane-slot-count=256",
                                         "--lane-request-bytes-max=64MiB",
                                         "--lane-reply-bytes-max=64MiB"};
  const auto read = ReadConfig(lane, [](const std::string&) { return std::nullopt; });
  EXPECT_THAT(std::string(read.status().message()), testing::HasSubstr("lane: lane of "));
  const auto mtu = ReadConfig(std::vector<std::string>{"--role=directory", "--verbs-mtu=1000"},
                              [](const std::string&) { return std::nullopt; });
  EXPECT_THAT(std::string(mtu.status().message()), testing::HasSubstr("verbs.mtu: 1000 is none"));
}

}  // namespace
}  // namespace ckv
