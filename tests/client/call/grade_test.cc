// Goal: a call's grade reaches the holders and is in its report; each wire type has its default; a
// grade that is none is refused. Method: holders in this process, on the model of the tile unit,
// which computes lower grades with fewer terms on any machine.

#include "attention/grade.h"

#include "attention/mla_partial.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::Cluster;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;

constexpr uint32_t kGradeRows = 20;

class GradeTest : public testing::Test {
 protected:
  GradeTest() {
    CKV_CHECK(ForceKernelTarget("AMX_MODEL").ok());
    corpus_ = MakeTestCorpus(TestGeometry(), {70, 64, 130}, 5);
    cluster_ = std::make_unique<Cluster>(fabric_.get(), 2, SmallShape());
    cluster_->fleet.Load("c", corpus_, {0, 1, 0});
    std::mt19937 rng(5);
    q_ = RandomBf16(size_t{kGradeRows} * 96, rng);
  }
  ~GradeTest() override { CKV_CHECK(ForceKernelTarget("").ok()); }

  AttendCall Call(PartialDtype wire, Grade grade) {
    AttendCall call;
    call.corpus = cluster_->Resolve("c");
    call.q = {q_.data(), kGradeRows, 96};
    call.wire = wire;
    call.grade = grade;
    call.deadline = Soon();
    return call;
  }
  Answer Asked(PartialDtype wire, Grade grade, Grade want) {
    Answer answer(kGradeRows, 64);
    AttendReport report;
    const absl::Status status =
        cluster_->requester->Attend(Call(wire, grade), answer.View(), &report);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(report.grade, want);
    EXPECT_EQ(report.kernel_target, KernelTargetId::kAmxModel);
    return answer;
  }

  std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  test::TestCorpus corpus_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<uint16_t> q_;
};

TEST_F(GradeTest, ReachesTheHoldersAndTheReport) {
  const Answer exact = Asked(PartialDtype::kF32, Grade::kExact, Grade::kExact);
  const Answer wire = Asked(PartialDtype::kF32, Grade::kWire, Grade::kWire);
  const Answer fast = Asked(PartialDtype::kF32, Grade::kFast, Grade::kFast);
  EXPECT_TRUE(Asked(PartialDtype::kF32, Grade::kDefault, Grade::kExact).SameBits(exact));
  EXPECT_FALSE(wire.SameBits(exact));
  EXPECT_FALSE(fast.SameBits(wire));
  double worst_wire = 0, worst_fast = 0;
  for (size_t i = 0; i < exact.o.size(); ++i) {
    worst_wire = std::max(worst_wire, std::fabs(double{wire.o[i]} - double{exact.o[i]}));
    worst_fast = std::max(worst_fast, std::fabs(double{fast.o[i]} - double{exact.o[i]}));
  }
  EXPECT_LT(worst_wire, 0x1p-14);
  EXPECT_GT(worst_fast, 4 * worst_wire);
  EXPECT_LT(worst_fast, 0x1p-5);
}

TEST_F(GradeTest, Bf16PartialsAreOfPrecisionWireByDefault) {
  const Answer said = Asked(PartialDtype::kBf16, Grade::kWire, Grade::kWire);
  EXPECT_TRUE(Asked(PartialDtype::kBf16, Grade::kDefault, Grade::kWire).SameBits(said));
}

TEST_F(GradeTest, AnUnknownOneIsRefused) {
  Answer answer(kGradeRows, 64);
  const absl::Status status = cluster_->requester->Attend(
      Call(PartialDtype::kF32, static_cast<Grade>(4)), answer.View(), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace ckv
