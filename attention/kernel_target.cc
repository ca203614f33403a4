#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "attention/block_kernel.h"
#include "attention/matrix/matrix_kernel.h"
#include "attention/mla_partial.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace ckv {
namespace {

struct Target {
  int64_t bit;  // Highway's; 0 for its best
  std::string_view name;
  const BlockKernel* attend;  // computes partial attention
};

// A unit that multiplies bf16 is chosen if its loop runs at this multiple of the f32 loop's rate.
// AMX has 12 times the rate, and less than 2 only where a hypervisor emulates it. VDPBF16PS has
// twice the rate on Zen 4 and half of it on Sapphire Rapids; its kernel does two thirds more
// instructions besides the products.
constexpr double kAmxGainMin = 3, kDotGainMin = 1.5;
constexpr int kRateRounds = 20;  // 10 us each
// The tile unit takes more than 200 us to come to its full rate: 1.27 TFLOP/s at first, then 3.34.
constexpr int kAmxRateRounds = 100;

// Highway's numbering has the lowest bit for the best target.
std::vector<Target> FindTargets() {
  std::vector<Target> targets, slower;
  const bool has_unit = matrix::AmxUnit().usable || matrix::DotUnit().usable;
  const double vectors = has_unit ? matrix::VectorRate(kRateRounds) : 0;
#if defined(__x86_64__)
  if (matrix::AmxUnit().usable) {
    const bool pays = matrix::AmxRate(kAmxRateRounds) >= kAmxGainMin * vectors;
    (pays ? targets : slower).push_back({0, "AMX", &matrix::AmxBlockKernel()});
  }
  if (matrix::DotUnit().usable) {
    const bool pays = matrix::DotRate(kRateRounds) >= kDotGainMin * vectors;
    (pays ? targets : slower).push_back({0, "AVX512_BF16", &matrix::DotBlockKernel()});
  }
#endif
  for (const int64_t bit : hwy::SupportedAndGeneratedTargets())
    targets.push_back({bit, hwy::TargetName(bit), &VectorKernel()});
  targets.insert(targets.end(), slower.begin(), slower.end());
  const BlockKernel* model = &matrix::PortableModelBlockKernel();
#if defined(__x86_64__)
  if (matrix::VectorRate(1) > 0) model = &matrix::ModelBlockKernel();
#endif
  targets.push_back({0, "AMX_MODEL", model});
  return targets;
}

// Found once, before any target is forced: afterwards Highway reports the forced one only.
const std::vector<Target>& AllTargets() {
  static const std::vector<Target>* const targets = new std::vector<Target>(FindTargets());
  return *targets;
}

// The target in use, once asked for. Highway asks the processor each time, which takes 40 us in a
// virtual machine.
std::atomic<const Target*> chosen{nullptr};

const Target& Chosen() {
  const Target* target = chosen.load(std::memory_order_acquire);
  if (target != nullptr) return *target;
  target = &AllTargets().front();
  chosen.store(target, std::memory_order_release);
  return *target;
}

// A matrix kernel turns raw logits into weights, which takes a scale that neither overflows nor
// vanishes. No model's is beyond these.
bool IsOrdinary(float scale) { return scale >= 0x1p-60f && scale <= 0x1p60f; }

}  // namespace

std::vector<std::string_view> KernelTargets() {
  std::vector<std::string_view> names;
  for (const Target& target : AllTargets()) names.push_back(target.name);
  return names;
}

std::string_view KernelTarget() { return Chosen().name; }

const BlockKernel& KernelFor(const AttentionShape& shape) {
  return IsOrdinary(shape.softmax_scale) ? *Chosen().attend : VectorKernel();
}

absl::Status ForceKernelTarget(std::string_view name) {
  const Target* target = name.empty() ? &AllTargets().front() : nullptr;
  for (const Target& one : AllTargets()) {
    if (one.name == name) target = &one;
  }
  if (target == nullptr) {
    return absl::NotFoundError(absl::StrFormat(
        "no kernel target '%s' on this machine; there are %s", name,
        absl::StrJoin(KernelTargets(), ", ",
                      [](std::string* out, std::string_view one) { out->append(one); })));
  }
  hwy::SetSupportedTargetsForTest(target->bit);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  chosen.store(target, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace ckv
