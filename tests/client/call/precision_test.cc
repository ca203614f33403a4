// Goal: a call's precision reaches the holders and is in its report; each wire type has its
// default; a precision that is none is refused. Method: holders in this process, on the model of
// the tile unit, which computes lower precisions with fewer terms on any machine.

#include "attention/precision.h"

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

constexpr uint32_t kPrecisionRows = 20;

class PrecisionTest : public testing::Test {
 public:
  ~PrecisionTest() override { CKV_CHECK(ForceKernelTarget("").ok()); }

 protected:
  PrecisionTest() {
    CKV_CHECK(ForceKernelTarget("AMX_MODEL").ok());
    corpus_ = MakeTestCorpus(TestGeometry(), {70, 64, 130}, 5);
    cluster_ = std::make_unique<Cluster>(fabric_.get(), 2, SmallShape());
    cluster_->fleet.Load("c", corpus_, {0, 1, 0});
    std::mt19937 rng(5);
    q_ = RandomBf16(size_t{kPrecisionRows} * 96, rng);
  }

  AttendCall Call(PartialDtype wire, Precision precision) {
    AttendCall call;
    call.corpus = cluster_->Resolve("c");
    call.q = {q_.data(), kPrecisionRows, 96};
    call.wire = wire;
    call.precision = precision;
    call.deadline = Soon();
    return call;
  }
  Answer Asked(PartialDtype wire, Precision precision, Precision want) {
    Answer answer(kPrecisionRows, 64);
    AttendReport report;
    const absl::Status status =
        cluster_->requester->Attend(Call(wire, precision), answer.View(), &report);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(report.precision, want);
    EXPECT_EQ(report.kernel_target, KernelTargetId::kAmxModel);
    return answer;
  }

  std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  test::TestCorpus corpus_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<uint16_t> q_;
};

TEST_F(PrecisionTest, ReachesTheHoldersAndTheReport) {
  const Answer exact = Asked(PartialDtype::kF32, Precision::kExact, Precision::kExact);
  const Answer wire = Asked(PartialDtype::kF32, Precision::kWire, Precision::kWire);
  const Answer fast = Asked(PartialDtype::kF32, Precision::kFast, Precision::kFast);
  EXPECT_TRUE(Asked(PartialDtype::kF32, Precision::kDefault, Precision::kExact).SameBits(exact));
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

TEST_F(PrecisionTest, Bf16PartialsAreOfPrecisionWireByDefault) {
  const Answer said = Asked(PartialDtype::kBf16, Precision::kWire, Precision::kWire);
  EXPECT_TRUE(Asked(PartialDtype::kBf16, Precision::kDefault, Precision::kWire).SameBits(said));
}

TEST_F(PrecisionTest, AnUnknownOneIsRefused) {
  Answer answer(kPrecisionRows, 64);
  const absl::Status status = cluster_->requester->Attend(
      Call(PartialDtype::kF32, static_cast<Precision>(4)), answer.View(), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace ckv
