// The rule that chooses a kernel target: a pure function of a machine's units and their measured
// rates.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ckv {

// A unit that multiplies bf16 is chosen if its loop runs at least at this multiple of the f32
// loop's rate. AMX has 12 times the rate; if a hypervisor emulates it, less than 2 times. VDPBF16PS
// has 1.9 times the f32 rate on Zen 5, and half of that rate on Sapphire Rapids. In an exact call
// VDPBF16PS computes the logits, and f32 computes the values. At a gain of 1.5, the call is 1.2
// times as fast.
inline constexpr double kAmxGainMin = 3, kDotGainMin = 1.5;

// The names of the targets that use these units.
inline constexpr std::string_view kAmxTarget = "AMX", kDotTarget = "AVX512_BF16";

// The rates of single-threaded loops that contain only these operations, in GFLOP/s. 0 if the
// machine lacks the unit. All are 0 if it has neither bf16 unit: the rule then needs none.
struct UnitRates {
  double f32 = 0;  // f32 fused multiply-adds in AVX-512
  double amx = 0;  // bf16 products by AMX tiles
  double dot = 0;  // bf16 products by VDPBF16PS

  friend bool operator==(const UnitRates&, const UnitRates&) = default;
};

// The units and instructions that a process may use. attention/kernel_target.cc makes it. Views of
// names here and in TargetOrder have static lifetime.
struct KernelMachine {
  // Why a unit cannot be used. Empty if the unit can be used.
  std::string amx_why_not, dot_why_not;
  // The targets for vector instructions, best first; never empty.
  std::vector<std::string_view> vector_targets;
  // Identifies the machine and the build (processor.h). Machines or builds whose targets or rates
  // may differ have different signatures. Readable by people.
  std::string signature;
};

struct TargetOrder {
  // The targets of the machine, the preferred one first. AMX and then AVX512_BF16 come first, each
  // if it is fast enough, and otherwise last. The vector targets are between them. A unit that
  // cannot be used is not listed.
  std::vector<std::string_view> targets;
  // Why the first target is first: each unit's rate and the rate that the rule needs, or why the
  // unit cannot be used. Example: "no AMX: the processor shows none; AVX512_BF16's 410 GFLOP/s are
  // 1.1 x f32's 370 (needs 1.5 x)".
  std::string reason;
};

TargetOrder OrderTargets(const KernelMachine& machine, const UnitRates& rates);

// A saved choice, so that the next start on the same machine makes the same choice.
struct KernelRecord {
  std::string target;     // the first target of the order
  UnitRates rates;        // the rates that determined the choice
  std::string signature;  // the signature of the machine and build

  friend bool operator==(const KernelRecord&, const KernelRecord&) = default;
};

// Checks that a record can be used on this machine. After an error, measure and make another one.
//   NotFound            the machine does not have the record's target.
//   FailedPrecondition  the record is from another machine or build, or has rate 0 for a unit that
//                       this machine has. Or the rule would choose another target for its rates.
absl::Status CheckRecord(const KernelMachine& machine, const KernelRecord& record);

}  // namespace ckv
