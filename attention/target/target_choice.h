// The rule that chooses a kernel target: a pure function of what a machine has and of what its
// units were measured at.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ckv {

// A unit that multiplies bf16 is chosen if its loop runs at this multiple of the f32 loop's rate.
// AMX has 12 times the rate, and less than 2 only where a hypervisor emulates it. VDPBF16PS has
// 1.9 times the rate on Zen 5, and half of it on Sapphire Rapids. In an exact call it
// computes the logits, and f32 computes the values. At a gain of 1.5 that is 1.2 times as
// fast.
inline constexpr double kAmxGainMin = 3, kDotGainMin = 1.5;

// The names of the targets on these units.
inline constexpr std::string_view kAmxTarget = "AMX", kDotTarget = "AVX512_BF16";

// The rates of loops of one thread that do nothing else, in GFLOP/s. 0 if the machine lacks the
// unit.
struct UnitRates {
  double f32 = 0;  // fused multiply-adds of f32 in AVX-512
  double amx = 0;  // products of bf16 by AMX tiles
  double dot = 0;  // products of bf16 by VDPBF16PS

  friend bool operator==(const UnitRates&, const UnitRates&) = default;
};

// The units and instructions that a process may use.
struct KernelMachine {
  // Why a unit cannot be used. Empty if it can.
  std::string amx_why_not, dot_why_not;
  // The targets of vector instructions, the best first.
  std::vector<std::string_view> vector_targets;
  // Two machines, or two builds, of which one may have other targets or rates differ in it
  // (processor.h). It is text for people too.
  std::string signature;
};

struct TargetOrder {
  // All targets of the machine, the one to take first. A unit that is not fast enough comes after
  // the vector targets.
  std::vector<std::string_view> targets;
  // Why the first one is the first: each unit's rate beside what the rule asks, or why it cannot be
  // used. As in "no AMX: the processor shows none; AVX512_BF16's 410 GFLOP/s are 1.1 x f32's 370
  // (needs 1.5 x)".
  std::string reason;
};

TargetOrder OrderTargets(const KernelMachine& machine, const UnitRates& rates);

// A choice that is kept, so that the next start of the same machine makes it again.
struct KernelRecord {
  std::string target;     // the first of the order
  UnitRates rates;        // those it was chosen by
  std::string signature;  // the machine's, and the build's

  friend bool operator==(const KernelRecord&, const KernelRecord&) = default;
};

// Checks that a record can be used on this machine.
//   NotFound            its target is none of the machine's.
//   FailedPrecondition  it was made on another machine or by another build. Or it lacks a rate, or
//                       the rule would choose another target by its rates.
absl::Status CheckRecord(const KernelMachine& machine, const KernelRecord& record);

}  // namespace ckv
