// Which kernels the process uses. Three facts, each made once and never destroyed:
//   AllTargets  the targets that this build has and this machine runs; made before one is forced
//   TheChoice   their order by speed: of a kept record (KeepKernelChoice), or measured at first use
//   Chosen      the target in use: the first of the order, or the one that ForceKernelTarget named
// A kept record counts only if it is given before anything else makes the choice.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "attention/block_kernel.h"
#include "attention/matrix/matrix_kernel.h"
#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "attention/target/processor.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace ckv {
namespace {

constexpr std::string_view kModelTarget = "AMX_MODEL";

struct Target {
  int64_t bit;  // Highway's; 0 for its best
  std::string_view name;
  const BlockKernel* attend;  // computes partial attention
};

// All targets of this machine, not ordered by speed.
struct Registry {
  std::vector<Target> targets;
  KernelMachine machine;

  const Target* Find(std::string_view name) const {
    for (const Target& target : targets) {
      if (target.name == name) return &target;
    }
    return nullptr;
  }
};

Registry MakeRegistry() {
  Registry registry;
  // Highway's numbering has the lowest bit for the best target.
  for (const int64_t bit : hwy::SupportedAndGeneratedTargets()) {
    registry.targets.push_back({bit, hwy::TargetName(bit), &VectorKernel()});
    registry.machine.vector_targets.push_back(registry.targets.back().name);
  }
  registry.machine.amx_why_not = matrix::AmxUnit().why_not;
  registry.machine.dot_why_not = matrix::DotUnit().why_not;
  const BlockKernel* model = &matrix::PortableModelBlockKernel();
#if defined(__x86_64__)
  if (matrix::AmxUnit().usable)
    registry.targets.push_back({0, kAmxTarget, &matrix::AmxBlockKernel()});
  if (matrix::DotUnit().usable)
    registry.targets.push_back({0, kDotTarget, &matrix::DotBlockKernel()});
  if (matrix::VectorRate(1) > 0) model = &matrix::ModelBlockKernel();
#endif
  registry.targets.push_back({0, kModelTarget, model});
  std::vector<std::string_view> names;
  for (const Target& target : registry.targets) names.push_back(target.name);
  registry.machine.signature = absl::StrFormat(
      "%s; targets %s", DescribeProcessor(),
      absl::StrJoin(names, " ",
                    [](std::string* out, std::string_view name) { out->append(name); }));
  return registry;
}

// Made once, before any target is forced: afterwards Highway reports the forced one only.
const Registry& AllTargets() {
  static const Registry* const registry = new Registry(MakeRegistry());
  return *registry;
}

struct Choice {
  ChoiceOrigin origin = ChoiceOrigin::kMeasured;  // or kKept
  UnitRates rates;
  TargetOrder order;
};

Choice* MakeChoice(ChoiceOrigin origin, const UnitRates& rates) {
  auto* choice = new Choice{origin, rates, OrderTargets(AllTargets().machine, rates)};
  choice->order.targets.push_back(kModelTarget);
  return choice;
}

ABSL_CONST_INIT absl::Mutex choice_mu(absl::kConstInit);
// Set once, and never destroyed.
const Choice* made_choice ABSL_GUARDED_BY(choice_mu) = nullptr;

// Measures the machine's units, unless KeepKernelChoice provided their rates.
const Choice& TheChoice() {
  absl::MutexLock lock(&choice_mu);
  if (made_choice == nullptr) made_choice = MakeChoice(ChoiceOrigin::kMeasured, MeasureUnits());
  return *made_choice;
}

const Target& Best() { return *AllTargets().Find(TheChoice().order.targets.front()); }

// The target in use, after the first query. Highway queries the processor each time, which takes 40
// us in a virtual machine.
std::atomic<const Target*> chosen{nullptr};
// Whether the target in use was named by ForceKernelTarget.
std::atomic<bool> forced{false};

const Target& Chosen() {
  const Target* target = chosen.load(std::memory_order_acquire);
  if (target != nullptr) return *target;
  target = &Best();
  chosen.store(target, std::memory_order_release);
  return *target;
}

// A matrix kernel turns raw logits into weights, which takes a scale that neither overflows nor
// vanishes. No model's is beyond these.
bool IsOrdinary(float scale) { return scale >= 0x1p-60f && scale <= 0x1p60f; }

}  // namespace

std::vector<std::string_view> KernelTargets() { return TheChoice().order.targets; }

std::string_view KernelTarget() { return Chosen().name; }

const BlockKernel& KernelFor(const AttentionShape& shape) {
  return IsOrdinary(shape.softmax_scale) ? *Chosen().attend : VectorKernel();
}

KernelChoice ChosenKernel() {
  const Choice& choice = TheChoice();
  return {.target = Chosen().name,
          .origin = forced.load(std::memory_order_relaxed) ? ChoiceOrigin::kForced : choice.origin,
          .rates = choice.rates,
          .reason = choice.order.reason};
}

KernelRecord ChosenKernelRecord() {
  const Choice& choice = TheChoice();
  return {.target = std::string(choice.order.targets.front()),
          .rates = choice.rates,
          .signature = AllTargets().machine.signature};
}

absl::Status KeepKernelChoice(const KernelRecord& record) {
  if (absl::Status status = CheckRecord(AllTargets().machine, record); !status.ok()) return status;
  absl::MutexLock lock(&choice_mu);
  if (made_choice == nullptr) made_choice = MakeChoice(ChoiceOrigin::kKept, record.rates);
  if (made_choice->order.targets.front() == record.target) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrFormat("this process has chosen %s before", made_choice->order.targets.front()));
}

absl::Status CheckKernelTarget(std::string_view name) {
  const Registry& registry = AllTargets();
  if (registry.Find(name) != nullptr) return absl::OkStatus();
  return absl::NotFoundError(absl::StrFormat(
      "no kernel target '%s' on this machine; there are %s", name,
      absl::StrJoin(registry.targets, ", ",
                    [](std::string* out, const Target& one) { out->append(one.name); })));
}

absl::Status ForceKernelTarget(std::string_view name) {
  if (!name.empty()) {
    if (absl::Status status = CheckKernelTarget(name); !status.ok()) return status;
  }
  const Target* target = name.empty() ? &Best() : AllTargets().Find(name);
  hwy::SetSupportedTargetsForTest(target->bit);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  forced.store(!name.empty(), std::memory_order_relaxed);
  chosen.store(target, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace ckv
