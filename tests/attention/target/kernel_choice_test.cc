// Goal: this process' choice is the one that its rates give, can be kept, and says when it was
// forced. Method: the targets and the record of this machine.

#include "attention/target/kernel_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/matrix/matrix_kernel.h"
#include "attention/mla_partial.h"
#include "attention/target/processor.h"

namespace ckv {
namespace {

using testing::HasSubstr;

TEST(KernelChoice, ChoosesTheFirstTargetAndGivesTheReason) {
  const KernelChoice choice = ChosenKernel();
  EXPECT_EQ(choice.target, KernelTargets().front());
  EXPECT_EQ(choice.target, KernelTarget());
  EXPECT_EQ(choice.origin, ChoiceOrigin::kMeasured);
  for (const auto& [unit, target] :
       {std::pair(matrix::AmxUnit(), kAmxTarget), std::pair(matrix::DotUnit(), kDotTarget)}) {
    EXPECT_THAT(choice.reason, HasSubstr(std::string(target)));
    EXPECT_THAT(choice.reason, HasSubstr(unit.usable ? "GFLOP/s" : unit.why_not));
  }
  EXPECT_EQ(choice.rates.amx > 0, matrix::AmxUnit().usable);
  EXPECT_EQ(choice.rates.dot > 0, matrix::DotUnit().usable);
}

TEST(KernelChoice, ReportsAForcedTarget) {
  ASSERT_TRUE(ForceKernelTarget("AMX_MODEL").ok());
  EXPECT_EQ(ChosenKernel().target, "AMX_MODEL");
  EXPECT_EQ(ChosenKernel().origin, ChoiceOrigin::kForced);
  // What is kept is what would have been chosen.
  EXPECT_EQ(ChosenKernelRecord().target, KernelTargets().front());
  ASSERT_TRUE(ForceKernelTarget("").ok());
  EXPECT_EQ(ChosenKernel().origin, ChoiceOrigin::kMeasured);
  EXPECT_EQ(ChosenKernel().target, KernelTargets().front());
}

TEST(KernelChoice, TheRecordOfThisProcessCountsHere) {
  const KernelRecord record = ChosenKernelRecord();
  EXPECT_EQ(record.target, KernelTargets().front());
  EXPECT_TRUE(KeepKernelChoice(record).ok());
  KernelRecord elsewhere = record;
  elsewhere.signature += "x";
  EXPECT_EQ(KeepKernelChoice(elsewhere).code(), absl::StatusCode::kFailedPrecondition);
  if (!matrix::DotUnit().usable)
    GTEST_SKIP() << "no unit to choose: " << matrix::DotUnit().why_not
                 << "; to run it: a processor with AVX512_BF16";
  // Other rates, by which the other of the two is first: too late.
  const bool is_dot = record.target == kDotTarget;
  KernelRecord other = record;
  other.rates = {.f32 = 100, .amx = record.rates.amx > 0 ? 1.0 : 0, .dot = is_dot ? 1.0 : 1000};
  other.target = is_dot ? std::string(KernelTargets()[1]) : std::string(kDotTarget);
  const absl::Status late = KeepKernelChoice(other);
  EXPECT_EQ(late.code(), absl::StatusCode::kAlreadyExists) << late;
  EXPECT_EQ(KernelTarget(), record.target);
}

TEST(KernelChoice, ATargetIsCheckedWithoutBeingForced) {
  for (const std::string_view target : KernelTargets())
    EXPECT_TRUE(CheckKernelTarget(target).ok()) << target;
  for (const std::string_view target : {"", "PDP11", "avx2"}) {
    const absl::Status status = CheckKernelTarget(target);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    for (const std::string_view known : KernelTargets())
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(known)));
  }
  EXPECT_EQ(KernelTarget(), KernelTargets().front());
}

TEST(Processor, IsDescribedAlikeEachTime) {
  const std::string text = DescribeProcessor();
  EXPECT_EQ(text, DescribeProcessor());
  EXPECT_THAT(ChosenKernelRecord().signature, testing::StartsWith(text));
  EXPECT_THAT(ChosenKernelRecord().signature, HasSubstr("AMX_MODEL"));
}

}  // namespace
}  // namespace ckv
