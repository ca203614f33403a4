// Goal: a unit that multiplies bf16 is chosen where it pays and nowhere else, the reason says why,
// and a kept choice counts only where it was made. Method: invented machines and rates.

#include "attention/target/target_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace ckv {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kNone = "the processor shows none";

KernelMachine MachineWith(bool amx, bool dot) {
  KernelMachine machine;
  if (!amx) machine.amx_why_not = kNone;
  if (!dot) machine.dot_why_not = kNone;
  machine.vector_targets = {"AVX3", "AVX2"};
  machine.signature = "one machine";
  return machine;
}

struct Case {
  std::string_view name;
  bool amx, dot;
  UnitRates rates;
  std::vector<std::string_view> order;
};

// The first was measured (deploy/adr/0024), and so was Zen 5.
const Case kCases[] = {
    {"Sapphire Rapids", true, true, {242, 3340, 121}, {"AMX", "AVX3", "AVX2", "AVX512_BF16"}},
    {"Zen 5", false, true, {270, 0, 505}, {"AVX512_BF16", "AVX3", "AVX2"}},
    {"Zen 4", false, true, {120, 0, 240}, {"AVX512_BF16", "AVX3", "AVX2"}},
    {"emulated AMX", true, true, {242, 400, 121}, {"AVX3", "AVX2", "AMX", "AVX512_BF16"}},
    {"both pay", true, true, {242, 3340, 480}, {"AMX", "AVX512_BF16", "AVX3", "AVX2"}},
    {"just AMX", true, false, {100, 300, 0}, {"AMX", "AVX3", "AVX2"}},
    {"just not AMX", true, false, {100, 299.9, 0}, {"AVX3", "AVX2", "AMX"}},
    {"just VDPBF16PS", false, true, {100, 0, 150}, {"AVX512_BF16", "AVX3", "AVX2"}},
    {"just not VDPBF16PS", false, true, {100, 0, 149.9}, {"AVX3", "AVX2", "AVX512_BF16"}},
    {"no unit", false, false, {}, {"AVX3", "AVX2"}},
};

TEST(OrderTargets, PutsAUnitFirstIfItIsFaster) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.name);
    EXPECT_EQ(OrderTargets(MachineWith(one.amx, one.dot), one.rates).targets, one.order);
  }
}

TEST(OrderTargets, TheReasonHasTheNumbersOrWhyNot) {
  const TargetOrder order = OrderTargets(MachineWith(false, true), {370, 0, 410});
  EXPECT_THAT(order.targets, ElementsAre("AVX3", "AVX2", "AVX512_BF16"));
  EXPECT_EQ(order.reason,
            "no AMX: the processor shows none; AVX512_BF16's 410 GFLOP/s are 1.1 x f32's 370 "
            "(needs 1.5 x)");
  EXPECT_THAT(OrderTargets(MachineWith(true, true), {242, 3340, 121}).reason,
              AllOf(HasSubstr("AMX's 3340 GFLOP/s are 13.8 x f32's 242 (needs 3.0 x)"),
                    Not(HasSubstr("no AMX"))));
}

KernelRecord RecordOf(const KernelMachine& machine, const UnitRates& rates) {
  return {std::string(OrderTargets(machine, rates).targets.front()), rates, machine.signature};
}

TEST(CheckRecord, CountsWhereItWasMade) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.name);
    const KernelMachine machine = MachineWith(one.amx, one.dot);
    const absl::Status status = CheckRecord(machine, RecordOf(machine, one.rates));
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(CheckRecord, GivesTheReasonWhyARecordIsInvalid) {
  const KernelMachine machine = MachineWith(false, true);
  const KernelRecord good = RecordOf(machine, {370, 0, 740});
  const auto why_not = [&](auto change) {
    KernelRecord record = good;
    change(record);
    return CheckRecord(machine, record);
  };
  const absl::Status elsewhere = why_not([](KernelRecord& r) { r.signature = "another machine"; });
  EXPECT_EQ(elsewhere.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(elsewhere.message()),
              AllOf(HasSubstr("'another machine'"), HasSubstr("'one machine'")));
  const absl::Status unknown = why_not([](KernelRecord& r) { r.target = "PDP11"; });
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("PDP11"));
  // A unit that the machine has no more counts as one that it never had.
  EXPECT_EQ(why_not([](KernelRecord& r) { r.target = "AMX"; }).code(), absl::StatusCode::kNotFound);
  // Rates by which another rule than today's chose.
  const absl::Status other_rule = why_not([](KernelRecord& r) { r.rates.dot = 400; });
  EXPECT_EQ(other_rule.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other_rule.message()),
              AllOf(HasSubstr("names AVX512_BF16"), HasSubstr("chooses AVX3")));
  for (const absl::Status& missing : {why_not([](KernelRecord& r) { r.rates.f32 = 0; }),
                                      why_not([](KernelRecord& r) { r.rates.dot = 0; })}) {
    EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(missing.message()), HasSubstr("rate"));
  }
}

}  // namespace
}  // namespace ckv
