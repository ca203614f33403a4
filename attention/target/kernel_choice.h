// The kernel target of this process: how it came to be chosen, and a choice that is kept over
// restarts. The functions that name and force targets are in attention/mla_partial.h.
//
// Beside a noisy neighbour, or if a unit is about as fast as the rule asks, two starts may choose
// differently. Then so do the bits of answers. A process that keeps its record, and gives it back
// at the next start, computes the same bits again:
//
//   if (!KeepKernelChoice(record_of_last_time).ok()) { ... }  // before anything else of ckv
//   record_of_next_time = ChosenKernelRecord();

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "attention/target/target_choice.h"

namespace ckv {

enum class ChoiceOrigin : uint8_t {
  kMeasured,  // by loops timed in this process
  kKept,      // by a record, KeepKernelChoice
  kForced,    // by its name, ForceKernelTarget
};

constexpr std::string_view ChoiceOriginName(ChoiceOrigin origin) {
  return origin == ChoiceOrigin::kForced ? "forced"
         : origin == ChoiceOrigin::kKept ? "kept"
                                         : "measured";
}

struct KernelChoice {
  std::string_view target;  // KernelTarget()
  ChoiceOrigin origin = ChoiceOrigin::kMeasured;
  // The rates of the units, measured here or when the record was made. The choice was made by them
  // unless the target was forced.
  UnitRates rates;
  // TargetOrder::reason by those rates. It also says why units cannot be used.
  std::string reason;
};

// Returns the choice in use. The first call of it, of KernelTarget, of KernelTargets or of a kernel
// measures the units, unless a record was kept. Thread-safe.
KernelChoice ChosenKernel();
// Returns what KeepKernelChoice takes at the next start. If a target is forced, it is the choice
// that would have been made. Thread-safe.
KernelRecord ChosenKernelRecord();

// Makes the choice of `record`, without measuring. Thread-safe.
//   FailedPrecondition, NotFound  as CheckRecord. Nothing changes: the first use will measure.
//   AlreadyExists       the choice of this process was made before, and is another.
absl::Status KeepKernelChoice(const KernelRecord& record);

// Returns OK if ForceKernelTarget would take `target`. Measures nothing. Thread-safe.
//   NotFound            as ForceKernelTarget.
absl::Status CheckKernelTarget(std::string_view target);

}  // namespace ckv
