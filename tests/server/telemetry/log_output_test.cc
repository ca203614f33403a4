// Goal: a place that writes in a loop is cut short and counted, and no other place loses a line.
// Method: a logger of the test's own writes through a LogOutput whose clock the test moves.

#include "server/telemetry/log_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>

#include <string>
#include <thread>
#include <vector>

namespace ckv {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class LogOutputTest : public testing::Test {
 protected:
  LogOutputTest()
      : output_(std::make_shared<LogOutput>(
            LogStyle{}, &clock_, [this](std::string_view line) { lines_.emplace_back(line); })),
        logger_("test", output_) {
    logger_.set_level(spdlog::level::trace);
  }

  void Write(int place, const std::string& text,
             spdlog::level::level_enum level = spdlog::level::warn) {
    logger_.log(spdlog::source_loc("some/file.cc", place, "F"), level, "{}", text);
  }

  ManualClock clock_;
  std::vector<std::string> lines_;
  std::shared_ptr<LogOutput> output_;
  spdlog::logger logger_;
};

TEST_F(LogOutputTest, APlaceThatRepeatsIsCutShortAndCounted) {
  for (uint32_t i = 0; i < kLogLinesMax + 5; ++i) Write(1, "again " + std::to_string(i));
  EXPECT_EQ(lines_.size(), kLogLinesMax);
  EXPECT_EQ(output_->left_out_count(), 5u);
  output_->Tick();
  EXPECT_EQ(lines_.size(), kLogLinesMax);  // the period is not over

  clock_.Advance(kLogPeriod);
  output_->Tick();
  ASSERT_EQ(lines_.size(), kLogLinesMax + 1);
  EXPECT_THAT(lines_.back(), HasSubstr("warning 5 more lines like this were left out: again " +
                                       std::to_string(kLogLinesMax + 4)));
  output_->Tick();
  EXPECT_EQ(lines_.size(), kLogLinesMax + 1);  // reported once
}

TEST_F(LogOutputTest, AnotherPlaceLosesNothing) {
  for (int i = 0; i < 1000; ++i) Write(1, "flood");
  Write(2, "the one that matters");
  EXPECT_THAT(lines_.back(), HasSubstr("the one that matters"));
}

// A level is a place of its own: debug lines of a place do not use up the limit of its errors.
TEST_F(LogOutputTest, EachLevelHasItsLimit) {
  for (int i = 0; i < 1000; ++i) Write(1, "flood", spdlog::level::debug);
  EXPECT_EQ(lines_.size(), kLogDebugLinesMax);
  for (int i = 0; i < 1000; ++i) Write(1, "flood", spdlog::level::warn);
  EXPECT_EQ(lines_.size(), kLogDebugLinesMax + kLogLinesMax);
  for (int i = 0; i < 1000; ++i) Write(1, "flood", spdlog::level::err);
  EXPECT_EQ(lines_.size(), kLogDebugLinesMax + kLogLinesMax + kLogErrorLinesMax);
}

TEST_F(LogOutputTest, ThePeriodAfterOneThatLeftLinesOutWritesAgain) {
  for (uint32_t i = 0; i < kLogLinesMax + 1; ++i) Write(1, "first");
  clock_.Advance(kLogPeriod);
  Write(1, "second");
  ASSERT_EQ(lines_.size(), kLogLinesMax + 2);
  EXPECT_THAT(lines_[kLogLinesMax], HasSubstr("1 more lines like this were left out: first"));
  EXPECT_THAT(lines_.back(), HasSubstr("second"));
}

TEST_F(LogOutputTest, APlaceThatStaysBelowItsLimitIsNeverCut) {
  for (int period = 0; period < 5; ++period) {
    for (uint32_t i = 0; i < kLogLinesMax; ++i) Write(1, "steady");
    clock_.Advance(kLogPeriod);
    output_->Tick();
  }
  EXPECT_EQ(lines_.size(), 5 * kLogLinesMax);
  EXPECT_EQ(output_->left_out_count(), 0u);
}

TEST_F(LogOutputTest, TheEndReportsWhatWasLeftOut) {
  for (uint32_t i = 0; i < kLogErrorLinesMax + 2; ++i) {
    Write(1, "lost " + std::to_string(i), spdlog::level::err);
  }
  logger_.flush();
  EXPECT_THAT(lines_.back(), HasSubstr("error 2 more lines like this were left out: lost " +
                                       std::to_string(kLogErrorLinesMax + 1)));
}

// More places than ckvd has cannot take memory without end. They share a limit, and are counted.
TEST_F(LogOutputTest, PlacesAreBounded) {
  const int count = static_cast<int>(kLogPlacesMax) + 1000;
  for (int place = 1; place <= count; ++place) Write(place, "place " + std::to_string(place));
  EXPECT_EQ(lines_.size(), kLogPlacesMax + kLogLinesMax);
  Write(1, "known");
  EXPECT_THAT(lines_.back(), HasSubstr("known"));
  Write(count + 1, "an error", spdlog::level::err);
  EXPECT_THAT(lines_.back(), HasSubstr("an error"));
}

TEST_F(LogOutputTest, TheStyleChangesWhileItRuns) {
  Write(1, "one");
  LogStyle style;
  style.format = LogFormat::kLogfmt;
  style.name = "h1";
  output_->SetStyle(style);
  Write(1, "two");
  EXPECT_THAT(lines_[0], HasSubstr("warning one\n"));
  EXPECT_THAT(lines_[1], AllOf(HasSubstr(" name=h1 src=file.cc:1 tid="), HasSubstr(" msg=two\n")));
}

TEST_F(LogOutputTest, ThreadsWriteWholeLines) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] {
      for (uint32_t n = 0; n < kLogLinesMax; ++n) Write(i + 1, "same text");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), kThreads * kLogLinesMax);
  EXPECT_THAT(lines_, testing::Each(testing::EndsWith(" warning same text\n")));
}

}  // namespace
}  // namespace ckv
