#include "server/daemon/kernel_start.h"

#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status SettleKernelTarget(const Config& config) {
  if (config.kernel_target != kKernelTargetAuto) {
    if (absl::Status status = ForceKernelTarget(config.kernel_target); !status.ok())
      return Annotate(status, "kernel_target");
    Log().info("kernel target {}: kernel_target names it", KernelTarget());
    return absl::OkStatus();
  }
  const KernelChoice choice = ChosenKernel();
  Log().info("kernel target {}: {}", choice.target, choice.reason);
  return absl::OkStatus();
}

}  // namespace ckv
