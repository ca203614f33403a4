// Goal: a program that embeds the requester keeps its stdout for itself.
// Method: a requester with every level of its log on attends, loses its holder and fails, while
// both streams of this process are captured.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/requester.h"
#include "proto/base/log.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

TEST(Quiet, TheLibraryNeverWritesToStdout) {
  const auto shm = NewShmFabric(Clock::Real());
  const auto tcp = NewTcpFabric(Clock::Real());
  test::TestFleet fleet({shm.get(), tcp.get()});
  fleet.StartHolder(0);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {64}, /*seed=*/1);
  fleet.Load("c", corpus, {0});
  RequesterOptions options;
  options.fabrics = {shm.get(), tcp.get()};
  const auto before = Logger().level();
  Logger().set_level(spdlog::level::trace);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    auto requester = Requester::Create(options, &fleet, &fleet);
    ASSERT_TRUE(requester.ok()) << requester.status();
    const auto published = (*requester)->Resolve("c", "", test::Soon());
    ASSERT_TRUE(published.ok()) << published.status();
    std::mt19937 rng(2);
    const auto q = test::RandomBf16(size_t{4} * corpus.geometry.d_qk, rng);
    AttendCall call;
    call.corpus = *published;
    call.q = {q.data(), 4, corpus.geometry.d_qk};
    call.deadline = test::Soon();
    test::Answer got(4, corpus.geometry.d_v);
    AttendReport report;
    const absl::Status answered = (*requester)->Attend(call, got.View(), &report);
    EXPECT_TRUE(answered.ok()) << answered;
    fleet.StopHolder(0);
    call.deadline = test::Shortly();
    EXPECT_FALSE((*requester)->Attend(call, got.View(), &report).ok());
  }
  Logger().set_level(before);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("spoken to over"), std::string::npos);
}

}  // namespace
}  // namespace ckv
