// Goal: an empty variable counts as unset, for every key. Method: ReadConfig with each key's
// variable empty, alone and together, and with a file that sets one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/daemon/config.h"
#include "server/daemon/config_options.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

absl::StatusOr<ParsedConfig> ReadWith(const std::vector<std::string>& arguments,
                                      const Environment& environment = {}) {
  return ReadConfig(arguments, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

// One rule for all keys, and for the name of the file: composed files pass what they lack as empty.
TEST(EmptyVariable, CountsAsUnset) {
  const std::string path = test::TempPath("set.yaml");
  std::ofstream(path) << "name: from-the-file\n";
  const std::vector<std::string> arguments = {"--role=directory", "--config=" + path};
  const auto plain = ReadWith(arguments);
  ASSERT_TRUE(plain.ok()) << plain.status();
  Environment all = {{"CKV_CONFIG", ""}};
  for (const OptionSpec& option : ConfigOptions()) {
    for (const std::string_view key : {option.key, option.former_key}) {
      if (key.empty()) continue;
      const std::string name = OptionEnvironmentName(key);
      const auto parsed = ReadWith(arguments, {{name, ""}});
      ASSERT_TRUE(parsed.ok()) << name << ": " << parsed.status();
      EXPECT_EQ(parsed->config.name, "from-the-file") << name;
      all[name] = "";
    }
  }
  const auto parsed = ReadWith(arguments, all);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->warnings, plain->warnings);
  EXPECT_THAT(ConfigHelp(), HasSubstr("An empty variable"));
}

}  // namespace
}  // namespace ckv
