#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "attention/mla_partial.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace ckv {
namespace {

struct Target {
  int64_t bit;
  std::string_view name;
};

// Read once, before any target is forced: afterwards Highway reports the forced one only. In
// Highway's numbering the lowest bit is the best target.
const std::vector<Target>& AllTargets() {
  static const std::vector<Target>* const targets = [] {
    auto* list = new std::vector<Target>;
    for (const int64_t bit : hwy::SupportedAndGeneratedTargets()) {
      list->push_back({bit, hwy::TargetName(bit)});
    }
    return list;
  }();
  return *targets;
}

// The target in use, once asked for. Highway asks the processor each time, which takes 40 us in a
// virtual machine.
std::atomic<const Target*> chosen{nullptr};

}  // namespace

std::vector<std::string_view> KernelTargets() {
  std::vector<std::string_view> names;
  for (const Target& target : AllTargets()) names.push_back(target.name);
  return names;
}

std::string_view KernelTarget() {
  const Target* target = chosen.load(std::memory_order_acquire);
  if (target != nullptr) return target->name;
  const std::vector<Target>& targets = AllTargets();
  const int64_t enabled = hwy::SupportedTargets();
  target = &targets.back();
  for (const Target& one : targets) {
    if ((enabled & one.bit) == 0) continue;
    target = &one;
    break;
  }
  chosen.store(target, std::memory_order_release);
  return target->name;
}

absl::Status ForceKernelTarget(std::string_view name) {
  int64_t bit = 0;
  for (const Target& target : AllTargets()) {
    if (target.name == name) bit = target.bit;
  }
  if (bit == 0 && !name.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "no kernel target '%s' on this machine; there are %s", name,
        absl::StrJoin(KernelTargets(), ", ",
                      [](std::string* out, std::string_view target) { out->append(target); })));
  }
  hwy::SetSupportedTargetsForTest(bit);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  chosen.store(nullptr, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace ckv
