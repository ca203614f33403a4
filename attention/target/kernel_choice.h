// The kernel target of this process: how it was chosen, and how to keep the choice over restarts.
// The functions that name and force targets are in attention/mla_partial.h.
//
// Two starts may choose differently if a neighbor disturbs the measurement, or if a unit's rate is
// near the rule's limit. The bits of answers then differ too. A process that saves its record and
// passes it at the next start computes the same bits again:
//
//   if (!KeepKernelChoice(record_of_last_time).ok()) { ... }  // before any other use of ckv
//   record_of_next_time = ChosenKernelRecord();

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "attention/target/target_choice.h"

namespace ckv {

enum class ChoiceOrigin : uint8_t {
  kMeasured,  // from loops timed in this process
  kKept,      // from a record: KeepKernelChoice
  kForced,    // by name: ForceKernelTarget
};

constexpr std::string_view ChoiceOriginName(ChoiceOrigin origin) {
  return origin == ChoiceOrigin::kForced ? "forced"
         : origin == ChoiceOrigin::kKept ? "kept"
                                         : "measured";
}

struct KernelChoice {
  std::string_view target;  // KernelTarget()
  ChoiceOrigin origin = ChoiceOrigin::kMeasured;
  // The rates of the units, measured here or when the record was made. They determined the choice,
  // unless the target was forced.
  UnitRates rates;
  // TargetOrder::reason for those rates. Includes why units cannot be used.
  std::string reason;
};

// Returns the choice in use. The first call of this function, ChosenKernelRecord, KernelTarget,
// KernelTargets or a kernel measures the units, unless a record was kept. Thread-safe.
KernelChoice ChosenKernel();
// Returns the record to pass to KeepKernelChoice at the next start. If a target is forced, the
// record has the choice that would have been made otherwise. Thread-safe.
KernelRecord ChosenKernelRecord();

// Adopts the choice in `record`, without measuring. Thread-safe.
//   FailedPrecondition, NotFound  as CheckRecord. Nothing changes: the first use will measure.
//   AlreadyExists       this process has already chosen another target. If it chose the same one,
//   it
//                       keeps its own rates, and this returns OK.
absl::Status KeepKernelChoice(const KernelRecord& record);

// Returns OK if this machine has the kernel target `target`. Measures nothing. Thread-safe. An
// empty name is NotFound here, although ForceKernelTarget accepts it.
//   NotFound            as ForceKernelTarget.
absl::Status CheckKernelTarget(std::string_view target);

}  // namespace ckv
