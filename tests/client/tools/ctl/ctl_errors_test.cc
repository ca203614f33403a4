// Goal: what ckvctl prints for programs and for terminals: errors as JSON, tables of 80 columns, a
// command that is run again, health, and the version.
// Method: RunCtl in this process against an address where no process listens.

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"

namespace ckv::ctl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Every wait ends at once, at its deadline.
class HastyClock final : public Clock {
 public:
  Instant Now() const noexcept override { return now_; }
  bool Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    mu.AssertHeld();
    waits.push_back(deadline - now_);
    now_ = deadline;
    return condition.Eval();
  }
  std::vector<Duration> waits;

 private:
  Instant now_ = Clock::Real()->Now();
};

struct CtlOutcome {
  int code = 0;
  std::string out, err;
};

CtlOutcome Told(std::vector<std::string> arguments, uint64_t watch_count_max = 0,
                Clock* clock = Clock::Real()) {
  std::ostringstream out, err;
  Ctl ctl;
  ctl.out = &out;
  ctl.err = &err;
  ctl.clock = clock;
  ctl.watch_count_max = watch_count_max;
  // No process listens on port 1, so the call fails at once.
  ctl.fleet.directory = "127.0.0.1:1";
  CtlOutcome outcome;
  outcome.code = RunCtl(ctl, std::move(arguments));
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

TEST(CtlErrors, AreJsonWhereTheResultWouldBe) {
  const CtlOutcome outcome = Told({"corpus", "list", "-o", "json"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_EQ(outcome.out, "");
  const Json error = Json::parse(outcome.err).at("error");
  EXPECT_EQ(error.at("code"), "UNAVAILABLE");
  EXPECT_EQ(error.at("exit_code"), 4);
  EXPECT_THAT(std::string(error.at("message")),
              AllOf(HasSubstr("127.0.0.1:1"), Not(HasSubstr("\n"))));
  EXPECT_FALSE(error.at("hints").empty());
  EXPECT_THAT(Told({"corpus", "list"}).err, HasSubstr("ckvctl: "));
}

// A program shows each hint by itself, so none is half a sentence.
TEST(CtlErrors, ExplainConnectionFailuresInPlainWords) {
  const Json error = Json::parse(Told({"corpus", "list", "-o", "json"}).err).at("error");
  EXPECT_EQ(error.at("message"),
            "directory at 127.0.0.1:1: ListCorpora: cannot connect: connection refused");
  EXPECT_EQ(error.at("hints").size(), 1u);
  // If a process was named by --at, the error names --at.
  std::ostringstream out, err;
  Ctl ctl;
  ctl.out = &out;
  ctl.err = &err;
  EXPECT_EQ(RunCtl(ctl, {"chunk", "release", "docs", "--at", "127.0.0.1:1"}), 4);
  EXPECT_THAT(err.str(), HasSubstr("looking for the directory: --at 127.0.0.1:1: Describe: "));
  EXPECT_THAT(err.str(), HasSubstr("name another with --at ("));
}

TEST(CtlErrors, ACommandLineThatDoesNotParseIsJsonToo) {
  for (const std::vector<std::string>& requested :
       std::vector<std::vector<std::string>>{{"-o", "json"}, {"-ojson"}, {"--output=json"}}) {
    std::vector<std::string> arguments = {"helth"};
    arguments.insert(arguments.end(), requested.begin(), requested.end());
    const CtlOutcome outcome = Told(arguments);
    EXPECT_EQ(outcome.code, 2);
    const Json error = Json::parse(outcome.err).at("error");
    EXPECT_EQ(error.at("code"), "INVALID_ARGUMENT");
    EXPECT_THAT(std::string(error.at("message")), HasSubstr("did you mean health?"));
  }
  EXPECT_THAT(Told({"helth"}).err, Not(HasSubstr("{")));
}

TEST(CtlVariables, NamesAMistypedVariable) {
  const auto reported = [](const std::string& name) {
    std::ostringstream out, err;
    Ctl ctl;
    ctl.out = &out;
    ctl.err = &err;
    ctl.variables = {"PATH", name};
    EXPECT_EQ(RunCtl(ctl, {"version"}), 0);
    return err.str();
  };
  EXPECT_THAT(reported("CKV_REQESTER"), HasSubstr("did you mean CKV_REQUESTER?"));
  EXPECT_THAT(reported("CKV_DIRECTRY"), HasSubstr("did you mean CKV_DIRECTORY?"));
  // ckvd's own, and right ones.
  for (const char* name : {"CKV_DIRECTORY", "CKV_DIRECTORY_PATH", "CKV_REQUESTER_PROFILE",
                           "CKV_STORE_CAPACITY", "CKV_CONFIG", "CKV_LISTEN"}) {
    EXPECT_EQ(reported(name), "") << name;
  }
}

TEST(CtlAges, HaveOneUnit) {
  using std::chrono::hours, std::chrono::minutes, std::chrono::seconds;
  EXPECT_EQ(FormatAge(seconds(-3)), "0 s");
  EXPECT_EQ(FormatAge(seconds(119)), "119 s");
  EXPECT_EQ(FormatAge(minutes(2)), "2 min");
  EXPECT_EQ(FormatAge(minutes(119)), "119 min");
  EXPECT_EQ(FormatAge(hours(47)), "47 h");
  EXPECT_EQ(FormatAge(hours(24 * 12)), "12 d");
}

TEST(CtlTimes, HaveOneGrammar) {
  EXPECT_THAT(Told({"corpus", "list", "--rpc-timeout", "5"}).err,
              HasSubstr("'5' is no length of time: like 250ms"));
  EXPECT_THAT(Told({"corpus", "list", "--rpc-timeout", "2h"}).err,
              HasSubstr("'2h' is not from 1ms to 1h"));
  EXPECT_EQ(Told({"corpus", "list", "--rpc-timeout", "1m"}).code, 4);
}

TEST(CtlTables, WiderThanATerminalAreSeveral) {
  Table table({{"NAME"}, {"A", true}, {"B"}, {"C"}});
  table.AddRow({"one", "1", std::string(40, 'b'), std::string(40, 'c')});
  table.AddRow({"two", "22", "b", "c"});
  EXPECT_EQ(table.Render(),
            "NAME   A  B\n"
            "one    1  " +
                std::string(40, 'b') +
                "\n"
                "two   22  b\n"
                "\n"
                "NAME  C\n"
                "one   " +
                std::string(40, 'c') +
                "\n"
                "two   c\n");
}

TEST(CtlTables, RepeatWhatNamesARowAndFillTheRoom) {
  Table table({{"NAME"}, {.title = "FABRIC", .key = true}, {"A"}, {"B"}});
  table.AddRow({"one", "tcp", std::string(65, 'a'), "b"});
  EXPECT_EQ(table.Render(),
            "NAME  FABRIC  A\n"
            "one   tcp     " +
                std::string(65, 'a') +
                "\n\n"
                "NAME  FABRIC  B\n"
                "one   tcp     b\n");
  SetTableColumns(100);
  EXPECT_THAT(table.Render(), Not(HasSubstr("\n\n")));
  SetTableColumns(kTerminalColumns);
}

TEST(CtlTrace, SamplesACallAndPrintsItsId) {
  const CtlOutcome outcome = Told({"--trace", "version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, testing::MatchesRegex("ckvctl: trace [0-9a-f]+\n"));
  EXPECT_EQ(outcome.err.size(), std::string("ckvctl: trace ").size() + 32 + 1);
  EXPECT_EQ(Told({"version"}).err, "");
}

TEST(CtlWatch, RunsAgainAfterEachSpan) {
  HastyClock clock;
  const CtlOutcome watched = Told({"health", "--watch", "2m"}, 3, &clock);
  EXPECT_EQ(watched.code, 4);
  EXPECT_THAT(clock.waits, ElementsAre(std::chrono::minutes(2), std::chrono::minutes(2)));
  size_t count = 0;
  for (size_t at = 0;
       (at = watched.out.find("broken: directory 127.0.0.1:1 ", at)) != std::string::npos; ++at)
    ++count;
  EXPECT_EQ(count, 3u);
  EXPECT_THAT(watched.out, testing::ContainsRegex("^20[0-9-]* [0-9:]* broken: "));
  EXPECT_THAT(watched.out, Not(HasSubstr("\x1b"))) << "no terminal";
  EXPECT_THAT(Told({"health", "--watch", "1ms"}, 3).err, HasSubstr("'1ms' is less than 100ms"));
}

TEST(CtlHealth, NamesWhoDoesNotAnswer) {
  const CtlOutcome outcome = Told({"health", "-o", "json"});
  EXPECT_EQ(outcome.code, 4);
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.at("healthy"), false);
  EXPECT_EQ(json.at("broken"), true);
  EXPECT_EQ(json.at("findings").at(0).at("code"), "directory-unreachable");
  EXPECT_EQ(json.at("findings").at(0).at("severity"), "broken");
  EXPECT_EQ(json.at("findings").at(0).at("subject"), "directory 127.0.0.1:1");
}

TEST(CtlHealth, ListsEveryCodeAndItsExitCode) {
  const std::string help = Told({"health", "--help"}).out;
  EXPECT_THAT(help, AllOf(HasSubstr("  requester-other-fleet       7  "),
                          HasSubstr("  corpus-chunks-missing       4  "),
                          HasSubstr("  member-lost                 -  "),
                          HasSubstr("  holder-store-full           6  ")));
}

TEST(CtlVersion, NamesTheCommit) {
  const CtlOutcome outcome = Told({"version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("commit:"));
}

}  // namespace
}  // namespace ckv::ctl
