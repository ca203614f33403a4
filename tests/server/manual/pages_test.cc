// Goal: pages, completions and the configuration file contain all that the programs' tables have,
// and the file changes nothing.
// Method: each option of the tables is looked for; the file is read as a daemon reads it, as it is
// and with every line in force. tests/deploy/pages_test.py checks with man and the shells.

#include "server/manual/pages.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/daemon/config_options.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string Escaped(const std::string& flag) {
  std::string text;
  for (const char c : flag) text += c == '-' ? std::string("\\-") : std::string(1, c);
  return text;
}

TEST(Pages, HaveEveryOptionOfBothPrograms) {
  for (const PageProgram& program : {DaemonProgram(), CtlProgram()}) {
    const std::string page = ManualPage(program);
    size_t option_count = 0;
    for (const PageCommand& command : program.commands) {
      for (const PageOption& option : command.options) {
        for (const std::string& name : option.names) {
          EXPECT_THAT(page, HasSubstr("\\fB" + Escaped(name) + "\\fR")) << command.path;
          if (!name.starts_with("-")) continue;
          ++option_count;
          EXPECT_THAT(BashCompletion(program), HasSubstr(name)) << command.path;
          EXPECT_THAT(ZshCompletion(program), HasSubstr(name)) << command.path;
          const bool is_long = name.starts_with("--");
          EXPECT_THAT(FishCompletion(program),
                      HasSubstr((is_long ? " -l " : " -s ") + name.substr(is_long ? 2 : 1)));
        }
      }
    }
    EXPECT_GT(option_count, 40u) << program.name;
  }
}

TEST(Pages, ListVerbsAndTheirValues) {
  const PageProgram ctl = CtlProgram();
  const std::string bash = BashCompletion(ctl);
  EXPECT_THAT(bash, HasSubstr("'corpus load') offers='"));
  EXPECT_THAT(bash, HasSubstr("*' --output') takes=1 values='table json'"));
  EXPECT_THAT(bash, HasSubstr("'corpus load --cut') takes=1 values='fixed document content'"));
  EXPECT_THAT(BashCompletion(DaemonProgram()),
              HasSubstr("*' --log-level') takes=1 values='trace debug info warn error off'"));
}

// Names of corpora are completed from the fleet, and never as files.
TEST(Pages, NamesOfCorporaAreReadFromTheFleet) {
  const PageProgram ctl = CtlProgram();
  const std::string bash = BashCompletion(ctl);
  EXPECT_THAT(bash, HasSubstr("'attend --corpus') takes=corpus ;;"));
  EXPECT_THAT(bash, HasSubstr("_ckvctl_corpora() {\n  ckvctl corpus list -o json"));
  EXPECT_THAT(ZshCompletion(ctl), HasSubstr("'attend --corpus') takes=corpus ;;"));
  EXPECT_THAT(FishCompletion(ctl), HasSubstr("-l corpus -r -f -a '(__fish_ckvctl_corpora)'"));
  EXPECT_THAT(BashCompletion(DaemonProgram()), Not(HasSubstr("_corpora")));
}

TEST(Pages, RoffKeepsItsOwnCharactersOut) {
  const PageProgram program = {
      "x", 1, "a.b", {{"", ".TH of 'its' own\n.SH and a \\n", {}, {}, ""}}};
  const std::string page = ManualPage(program);
  EXPECT_THAT(page, HasSubstr("\n\\&.TH of 'its' own\n\\&.SH and a \\en\n"));
}

class ConfigFileTest : public testing::Test {
 protected:
  // What a daemon makes of the file.
  static absl::StatusOr<ParsedConfig> Read(const std::string& text, const std::string& role) {
    const std::string path = test::TempPath("ckvd.yaml");
    std::ofstream(path) << text;
    const std::vector<std::string> arguments = {"--role=" + role, "--config=" + path};
    return ReadConfig(arguments, [](const std::string&) { return std::nullopt; });
  }
};

TEST_F(ConfigFileTest, TheDefaultFileNamesTheDirectoryOnly) {
  const auto parsed = Read(ConfigFile(), "holder");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  Config plain;
  plain.role = {"holder"};
  plain.directory = "127.0.0.1:7400";
  FillConfig(plain);
  EXPECT_EQ(ConfigToYaml(parsed->config), ConfigToYaml(plain));
}

TEST_F(ConfigFileTest, WithEveryLineInForceIsTheDefaultToo) {
  std::string text;
  size_t key_count = 1;  // the directory
  std::istringstream lines(ConfigFile());
  for (std::string line; std::getline(lines, line);) {
    const bool key = line.size() > 1 && line[0] == '#' && line[1] != ' ';
    key_count += key ? 1 : 0;
    text += (key ? line.substr(1) : line) + "\n";
  }
  EXPECT_EQ(key_count + 1, ConfigOptions().size()) << "all but the role";
  const auto parsed = Read(text, "requester");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  Config plain;
  plain.role = {"requester"};
  plain.directory = "127.0.0.1:7400";
  FillConfig(plain);
  EXPECT_EQ(ConfigToYaml(parsed->config), ConfigToYaml(plain));
}

}  // namespace
}  // namespace ckv
