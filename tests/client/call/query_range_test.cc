// Goal: a requester refuses queries whose products may overflow, names the row, and answers the
// next call as before. Method: holders in this process; blocking calls with a value that is too
// large, or no number, in the first, a middle and the last row.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "attention/bf16.h"
#include "client/requester.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::Cluster;
using testing::HasSubstr;

constexpr uint32_t kAskedRows = 5;

class QueryRangeTest : public testing::Test {
 protected:
  QueryRangeTest() {
    corpus_ = test::MakeTestCorpus(test::TestGeometry(), {70, 64, 130}, 5);
    cluster_ = std::make_unique<Cluster>(fabric_.get(), 2, test::SmallShape());
    cluster_->fleet.Load("c", corpus_, {0, 1, 0});
    std::mt19937 rng(5);
    q_ = test::RandomBf16(size_t{kAskedRows} * 96, rng);
  }
  AttendCall Call(const std::vector<uint16_t>& q) {
    AttendCall call;
    call.corpus = cluster_->Resolve("c");
    call.q = {q.data(), kAskedRows, 96};
    call.deadline = test::Soon();
    return call;
  }

  std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  test::TestCorpus corpus_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<uint16_t> q_;
};

TEST_F(QueryRangeTest, RefusesAnInvalidQueryByItsRow) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Answer before(kAskedRows, 64);
  ASSERT_TRUE(cluster_->requester->Attend(Call(q_), before.View(), nullptr).ok());
  for (const float bad : {3e38f, -3e38f, kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const uint32_t row : {0u, 2u, kAskedRows - 1}) {
      std::vector<uint16_t> q = q_;
      q[row * 96 + 41] = Bf16FromFloat(bad);
      Answer answer(kAskedRows, 64);
      const absl::Status status = cluster_->requester->Attend(Call(q), answer.View(), nullptr);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad << " " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("query row " + std::to_string(row)));
    }
  }
  Answer after(kAskedRows, 64);
  ASSERT_TRUE(cluster_->requester->Attend(Call(q_), after.View(), nullptr).ok());
  EXPECT_TRUE(after.SameBits(before));
}

}  // namespace
}  // namespace ckv
