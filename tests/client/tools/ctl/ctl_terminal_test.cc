// Goal: progress stays on one line of any terminal, a result that cannot be written is no success,
// Ctrl-C is answered, and help and refusals use the names that an operator typed.
// Method: a pseudo-terminal of each width; /dev/full, which takes no byte, as stdout; processes
// that get signals and die of them.

#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/interrupt.h"
#include "client/tools/ctl/progress.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A terminal without a person.
struct Terminal {
  explicit Terminal(unsigned short columns) {
    winsize size = {.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(openpty(&master, &terminal, nullptr, nullptr, &size), 0);
  }
  ~Terminal() {
    close(master);
    close(terminal);
  }
  int master = -1, terminal = -1;
};

// The longest line that the README's first command draws.
const ProgressState kWide = {"single instance: prefill", "tokens", 4096, 8192,
                             std::chrono::seconds(19)};

TEST(Progress, ALineFitsEveryWidth) {
  for (const uint32_t columns : {1u, 2u, 20u, 60u, 80u, 109u, 110u, 200u}) {
    const std::string line = RenderProgress(kWide, columns);
    EXPECT_LT(line.size(), columns) << line;
    EXPECT_EQ(line.starts_with('['), columns >= 110) << line;
    EXPECT_TRUE(columns < 80 || line.ends_with(" left")) << line;
  }
}

TEST(Progress, ReadsTheTerminalsWidthEachTime) {
  EXPECT_EQ(TerminalColumns(-1), 0u);
  EXPECT_EQ(TerminalColumns(Terminal(0).terminal), 80u);
  Terminal terminal(132);
  EXPECT_EQ(TerminalColumns(terminal.terminal), 132u);

  ManualClock clock;
  std::ostringstream out;
  Progress progress(&clock, &out, terminal.terminal, "put", "tokens", 100, /*quadratic=*/false);
  const auto draw = [&] {
    out.str("");
    clock.Advance(Progress::kTerminalPeriod);
    progress.Advance(10);
    return out.str();
  };
  EXPECT_THAT(draw(), StartsWith("\r[##......"));
  const winsize narrow = {.ws_row = 24, .ws_col = 20, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(terminal.terminal, TIOCSWINSZ, &narrow), 0);
  EXPECT_EQ(draw(), "\rput  20/100 tokens \x1b[K");
}

TEST(RunCtl, AResultThatStdoutDoesNotTakeIsCodeOne) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"}, {"--version"}, {"status", "--help"}}) {
    std::array<char, 1024> buffer;  // less than the help: the stream fails before its last byte
    std::ofstream full;
    full.rdbuf()->pubsetbuf(buffer.data(), buffer.size());
    full.open("/dev/full");
    std::ostringstream err;
    Ctl ctl;
    ctl.out = &full;
    ctl.err = &err;
    EXPECT_EQ(RunCtl(ctl, arguments), 1) << arguments[0];
    EXPECT_THAT(err.str(), HasSubstr("the result cannot be written to stdout: No space left"));
  }
  // The reason why there is no result counts more than that it could not be written.
  std::ofstream full("/dev/full");
  std::ostringstream err;
  Ctl ctl;
  ctl.out = &full;
  ctl.err = &err;
  EXPECT_EQ(RunCtl(ctl, {"nonsense"}), 2);
  EXPECT_THAT(err.str(), Not(HasSubstr("stdout")));
}

std::string ErrorOf(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  Ctl ctl;
  ctl.out = &out;
  ctl.err = &err;
  EXPECT_EQ(RunCtl(ctl, std::move(arguments)), 2);
  return err.str();
}

TEST(RunCtl, AMistypedWordBringsTheNearestOne) {
  EXPECT_THAT(ErrorOf({"stat"}), HasSubstr("not known here: stat; did you mean status?"));
  EXPECT_THAT(ErrorOf({"corpus", "lod", "x", "f"}), HasSubstr("did you mean load?"));
  EXPECT_THAT(ErrorOf({"corpus", "lod", "--help"}), HasSubstr("did you mean load?"));
  EXPECT_THAT(ErrorOf({"explain", "--korpus", "gpl"}), HasSubstr("did you mean --corpus?"));
  // Nothing else is missing here.
  EXPECT_THAT(ErrorOf({"status", "--directry", "h:1"}), HasSubstr("did you mean --directory?"));
  EXPECT_THAT(ErrorOf({"frobnicate"}), Not(HasSubstr("did you mean")));
}

TEST(RunCtl, NamesUnknownArgumentsOnceAndInOrder) {
  EXPECT_EQ(ErrorOf({"status", "--outptu", "json"}),
            "not known here: --outptu json; did you mean --output?\n"
            "Run with --help for more information.\n");
  EXPECT_THAT(ErrorOf({}), StartsWith("ckvctl needs a command: status, corpus, "));
  EXPECT_THAT(ErrorOf({"chunk"}), StartsWith("ckvctl chunk needs a command: replicate, "));
  std::ostringstream out;
  Ctl ctl;
  ctl.out = ctl.err = &out;
  EXPECT_EQ(RunCtl(ctl, {"help"}), 0);
  EXPECT_THAT(out.str(), HasSubstr("characterize"));
}

// The values of all options, of `app` and of its verbs.
void ExpectNamedValues(const CLI::App& app, const std::string& path) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    for (const char* word : {"TEXT", "UINT", "INT", "FLOAT", "SPAN", "BOOLEAN"}) {
      EXPECT_EQ(type.find(word), std::string::npos)
          << path << " " << option->get_name(true) << " takes a " << type;
    }
    if (!option->get_positional() && option->get_items_expected_max() > 0) {
      EXPECT_NE(type, "") << path << " " << option->get_name();
    }
  }
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    ExpectNamedValues(*verb, path + " " + verb->get_name());
}

TEST(RunCtl, HelpDescribesEachValue) {
  Ctl ctl;
  GlobalValues values;
  CLI::App app;
  BuildCommandLine(app, ctl, values);
  ExpectNamedValues(app, "ckvctl");
}

TEST(RunCtl, HelpHasNoCxxTypesAndFitsATerminal) {
  for (const std::vector<std::string>& verb :
       std::vector<std::vector<std::string>>{{},
                                             {"corpus", "load"},
                                             {"corpus", "partition"},
                                             {"chunk", "pin"},
                                             {"chunk", "unpin"},
                                             {"gc"},
                                             {"explain"},
                                             {"fetch"},
                                             {"attach"},
                                             {"agents", "run"},
                                             {"agents", "compare"},
                                             {"characterize"}}) {
    std::vector<std::string> arguments = verb;
    arguments.emplace_back("--help");
    std::ostringstream out, err;
    Ctl ctl;
    ctl.out = &out;
    ctl.err = &err;
    EXPECT_EQ(RunCtl(ctl, arguments), 0);
    for (const char* leak : {"UINT", "SPAN:", ":SPAN", " in [", "End that"}) {
      EXPECT_THAT(out.str(), Not(HasSubstr(leak))) << arguments[0];
    }
    // From the examples on, lines are not wrapped.
    const std::string options = out.str().substr(0, out.str().find("\nExamples:"));
    for (const absl::string_view line : absl::StrSplit(options, '\n')) {
      EXPECT_LE(line.size(), 80) << line;
    }
  }
}

TEST(RunCtl, ShowsTheRangeOfANumberOutsideIt) {
  EXPECT_THAT(ErrorOf({"explain", "--corpus", "c", "--mq", "0"}),
              HasSubstr("--mq: '0' is not a whole number from 1 to 65536"));
  EXPECT_THAT(ErrorOf({"explain", "--corpus", "c", "--mq", "99999999999999999999"}),
              HasSubstr("is not a whole number from 1 to 65536"));
}

// -o is the format of every command; the folder has a name of its own.
TEST(RunCtl, CharacterizeTakesAFolderAndAFormat) {
  EXPECT_THAT(ErrorOf({"characterize", "-o", "json"}), HasSubstr("--dir"));
  EXPECT_THAT(ErrorOf({"characterize", "--dir", "costs", "-o", "costs"}),
              HasSubstr("not one of table|json"));
}

TEST(Numbers, AFloatIsShownAsItWasWritten) {
  EXPECT_EQ(RenderJson(Json(ShortestDouble(0.1147f))), "0.1147\n");
  EXPECT_EQ(RenderJson(Json(ShortestDouble(0.25f))), "0.25\n");
  EXPECT_EQ(static_cast<float>(ShortestDouble(1.0f / 3)), 1.0f / 3);
}

// As at a prompt: a job in the background ignores SIGINT.
void InForeground() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

TEST(OnInterruptDeathTest, TheFirstSignalActsAndEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : {SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          InForeground();
          const OnInterrupt act([] { std::fputs("acted", stderr); });
          std::raise(signal);
          absl::Notification never;
          never.WaitForNotification();
        },
        testing::KilledBySignal(signal), "acted");
  }
}

TEST(OnInterruptDeathTest, TheNewestActsFirst) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        InForeground();
        const OnInterrupt first([] { std::fputs("first", stderr); });
        auto ended = std::make_unique<OnInterrupt>([] { std::fputs("ended", stderr); });
        const OnInterrupt last([] { std::fputs("last ", stderr); });
        ended.reset();
        std::raise(SIGINT);
        absl::Notification never;
        never.WaitForNotification();
      },
      testing::KilledBySignal(SIGINT), "^last first$");
}

TEST(OnInterruptDeathTest, TheSecondSignalDoesNotWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        InForeground();
        absl::Notification never;
        const OnInterrupt act([&never] { never.WaitForNotification(); });
        std::raise(SIGINT);
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(OnInterruptDeathTest, TheEndWaitsForWhatHasBegun) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        InForeground();
        {
          const OnInterrupt act([] { std::fputs("acted", stderr); });
          std::raise(SIGINT);
        }
        std::exit(0);  // never reached
      },
      testing::KilledBySignal(SIGINT), "acted");
}

TEST(OnInterruptDeathTest, AfterItsEndASignalIsAsBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        {
          const OnInterrupt act([] { std::fputs("acted", stderr); });
        }
        {
          const OnInterrupt again([] { std::fputs("acted", stderr); });
        }
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "^$");
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_IGN);  // as a shell leaves it for a job in the background
        const OnInterrupt act([] { std::fputs("acted", stderr); });
        std::raise(SIGINT);
        _exit(0);
      },
      testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace ckv::ctl
