// Settles what computes, before any thread starts. SettleKernelTarget: a configured target is
// forced; else the choice is the one that the holder's folder keeps, else that of the profile, else
// it is measured. KeepKernelTarget writes it to the folder later. SettleBackends opens a GPU if the
// configuration allows it and names no target. StartHolderOver starts the holder over it, and again
// over the processor if auto chose a device that fails.

#include "server/daemon/kernel_start.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "attention/device/backend_library.h"
#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "client/cost/kernel_record.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "server/holder/backend_memory.h"

namespace ckv {
namespace {

// Whether a holder's folder keeps the choice.
bool HasFolder(const Config& config) {
  return config.HasRole("holder") && !config.store_path.empty();
}

std::string FileOf(const Config& config) {
  return absl::StrCat(config.store_path, "/", std::string(kKernelFile));
}

//   NotFound            nothing is kept.
//   else                the kept choice cannot be used; the message has the reason.
absl::Status KeepFromFile(const Config& config, FileSystem& files) {
  CKV_ASSIGN_OR_RETURN(const std::string text,
                       ReadSmallFile(files, FileOf(config), kKernelRecordBytesMax));
  const auto record = ParseKernelRecord(text);
  if (!record.ok()) {
    return absl::DataLossError(
        absl::StrFormat("it is damaged: %s", std::string(record.status().message())));
  }
  const absl::Status status = KeepKernelChoice(*record);
  // The file is there, so this is no reason to look for another.
  return absl::IsNotFound(status) ? absl::FailedPreconditionError(status.message()) : status;
}

std::string NotUsed(const std::string& where, const absl::Status& why) {
  return absl::StrFormat("the kernel target that %s keeps is not used, and chosen again: %s", where,
                         std::string(why.message()));
}

// Uses the target that kernel_target names.
absl::StatusOr<KernelStart> Force(const std::string& target) {
  if (absl::Status status = ForceKernelTarget(target); !status.ok())
    return Annotate(status, "kernel_target");
  (void)ChosenKernel();  // measures now, not during calls: an operator may query rates
  KernelStart start;
  start.reason = absl::StrFormat("kernel target %s: kernel_target names it", target);
  return start;
}

KernelStart Choose(const Config& config, const Profile* profile, FileSystem& files) {
  KernelStart start;
  std::string kept_in;
  if (HasFolder(config)) {
    const absl::Status kept = KeepFromFile(config, files);
    if (kept.ok()) {
      kept_in = FileOf(config);
    } else {
      // Another daemon of this process may have chosen: the file is right for the next start.
      start.to_keep = !absl::IsAlreadyExists(kept);
      if (!absl::IsNotFound(kept)) start.warning = NotUsed(FileOf(config), kept);
    }
  }
  if (kept_in.empty() && profile != nullptr && profile->kernel) {
    const absl::Status kept = KeepKernelChoice(*profile->kernel);
    if (kept.ok()) kept_in = config.requester_profile;
    if (!kept.ok() && start.warning.empty())
      start.warning = NotUsed(config.requester_profile, kept);
  }
  const KernelChoice choice = ChosenKernel();
  start.reason = absl::StrFormat(
      "kernel target %s, %s: %s", choice.target,
      kept_in.empty() ? "measured" : absl::StrFormat("kept in %s", kept_in), choice.reason);
  return start;
}

}  // namespace

absl::StatusOr<KernelStart> SettleKernelTarget(const Config& config, const Profile* profile,
                                               FileSystem& files) {
  absl::StatusOr<KernelStart> start = config.kernel_target == kKernelTargetAuto
                                          ? Choose(config, profile, files)
                                          : Force(config.kernel_target);
  if (!start.ok()) return start;
  if (!start->warning.empty()) Log().warn("{}", start->warning);
  Log().info("{}", start->reason);
  return start;
}

absl::Status KeepKernelTarget(const Config& config, FileSystem& files) {
  if (!HasFolder(config)) return absl::OkStatus();
  const std::string text = FormatKernelRecord(ChosenKernelRecord());
  const std::string name(kKernelFile);
  absl::Status status = WriteSmallFile(files, absl::StrCat(config.store_path, "/new/", name),
                                       config.store_path, name, text);
  if (!status.ok())
    Log().warn("the kernel target is measured again at the next start: {}", status.ToString());
  return status;
}

absl::StatusOr<DaemonBackends> SettleBackends(const Config& config, const std::string& folder) {
  // A directory computes nothing, so it holds no device.
  if (!config.HasRole("holder") && !config.HasRole("requester")) return DaemonBackends();
  // An operator who names a target wants its bits on every host, with a GPU or without.
  if (config.backend == "auto" && config.kernel_target != kKernelTargetAuto) {
    Log().info("backend cpu: kernel_target names {}", config.kernel_target);
    return DaemonBackends();
  }
  CKV_ASSIGN_OR_RETURN(const BackendStart start, StartBackend(config.backend, folder));
  if (start.is_warning) {
    Log().warn("{}", start.reason);
  } else {
    Log().info("{}", start.reason);
  }
  DaemonBackends backends = {.holder = start.backend};
  const BackendReach& reach = start.backend->reach();
  if (config.backend == "auto" && config.HasRole("holder") && !HolderMemory(reach)) {
    Log().warn(
        "backend cpu: kernels of {} reach neither host memory nor pinned memory, where a holder "
        "has its chunks and lanes: install a library whose kernels do, or set backend: cpu",
        start.backend->kernel_target());
    backends.holder = Backend::Cpu();
  }
  if (reach.Everywhere(MemoryKind::kHost)) {
    backends.requester = start.backend;
  } else if (config.HasRole("requester")) {
    Log().info("the requester computes with {}: {} does not reach its messages",
               Backend::Cpu()->kernel_target(), start.backend->kernel_target());
  }
  return backends;
}

absl::StatusOr<std::unique_ptr<Holder>> StartHolderOver(DaemonBackends& backends,
                                                        const Config& config,
                                                        HolderOptions options) {
  options.backend = backends.holder;
  absl::StatusOr<std::unique_ptr<Holder>> holder = Holder::Start(options);
  const bool lacks = absl::IsResourceExhausted(holder.status());
  if (config.backend != "auto" || options.backend == Backend::Cpu() ||
      (!lacks && !absl::IsInternal(holder.status()))) {
    return holder;
  }
  Log().warn(
      "backend cpu: the holder does not start with kernels of {}: {}; set backend: cpu to "
      "start without them at once",
      options.backend->kernel_target(), std::string(holder.status().message()));
  backends = DaemonBackends();  // a device that fails is of no use to a requester either
  options.backend = backends.holder;
  return Holder::Start(options);
}

}  // namespace ckv
