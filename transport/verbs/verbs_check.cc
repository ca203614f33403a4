#include "transport/verbs/verbs_check.h"

#include <infiniband/verbs.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "transport/verbs/verbs_device.h"

namespace ckv {
namespace {

constexpr int kCapIpcLock = 14;  // linux/capability.h

// A process with CAP_IPC_LOCK is not held to RLIMIT_MEMLOCK.
bool MayLockMemory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != "CapEff:") continue;
    uint64_t capabilities = 0;
    status >> std::hex >> capabilities;
    return (capabilities >> kCapIpcLock & 1) != 0;
  }
  return false;
}

absl::Status NoDevice() {
  if (access("/sys/class/infiniband_verbs", F_OK) != 0) {
    return absl::UnavailableError(
        "no RDMA device: the kernel's ib_uverbs is not loaded (modprobe ib_uverbs, and the "
        "device's own module: mlx5_ib; or rdma_rxe for soft-RoCE)");
  }
  std::error_code error;
  const bool in_kernel = !std::filesystem::is_empty("/sys/class/infiniband", error) && !error;
  if (in_kernel && access("/dev/infiniband", F_OK) != 0) {
    return absl::UnavailableError(
        "the kernel has an RDMA device, and this process does not see /dev/infiniband: a unit of "
        "systemd needs rdma.conf (deploy/handbook/install.md), a container the folder itself");
  }
  if (access("/sys/class/infiniband", F_OK) != 0 || access("/dev/infiniband", F_OK) != 0) {
    return absl::UnavailableError(
        "no RDMA device in the kernel: load its module (mlx5_ib), or make a soft-RoCE one "
        "(modprobe rdma_rxe; rdma link add rxe0 type rxe netdev DEVICE)");
  }
  return absl::UnavailableError(
      "no RDMA device that libibverbs supports: install ibverbs-providers, or make a soft-RoCE one "
      "(rdma link add rxe0 type rxe netdev DEVICE); in a container, pass /dev/infiniband");
}

}  // namespace

absl::Status CheckVerbsOptions(const VerbsOptions& options) {
  const auto refuse = [](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrFormat("verbs options: %s", what));
  };
  if (options.port == 0) return refuse("ports count from 1");
  if (options.gid_index < -1) return refuse(absl::StrFormat("GID index %d", options.gid_index));
  const uint32_t mtu = options.mtu_bytes;
  if (!IsVerbsMtu(mtu)) {
    return refuse(absl::StrFormat("MTU %d is none of 256, 512, 1024, 2048, 4096", mtu));
  }
  if (options.service_level > 15) return refuse("service levels are 0 to 15");
  // 0 waits for ever, as does rnr_retry_count 7.
  if (options.timeout == 0 || options.timeout > 31) return refuse("timeout is 1 to 31");
  if (options.retry_count > 6) return refuse("retry_count is 0 to 6: soft-RoCE takes 7 for ever");
  if (options.rnr_retry_count > 6) return refuse("rnr_retry_count is 0 to 6: 7 is for ever");
  if (options.min_rnr_timer > 31) return refuse("min_rnr_timer is 0 to 31");
  if (options.segment_bytes < (64u << 10) || options.segment_bytes % 64 != 0 ||
      options.segment_bytes > (1u << 31)) {
    return refuse("segment_bytes is a multiple of 64 from 64 KiB to 2 GiB");
  }
  if (options.gather_segment_bytes < (size_t{1} << 20)) {
    return refuse("gather_segment_bytes is 1 MiB at least");
  }
  if (options.probe_interval_ms == 0 || options.silence_ms_max == 0) {
    return refuse("probe_interval_ms and silence_ms_max are 1 at least");
  }
  return absl::OkStatus();
}

absl::Status CheckLockedMemory(const VerbsOptions& options) {
  rlimit limit = {};
  if (MayLockMemory() || getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return absl::OkStatus();
  return CheckLockedMemory(options, limit.rlim_cur);
}

absl::Status CheckLockedMemory(const VerbsOptions& options, uint64_t limit_bytes) {
  const uint64_t needed = options.region_bytes.total_max;
  if (limit_bytes == RLIM_INFINITY || limit_bytes >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "RLIMIT_MEMLOCK is %d bytes, and verbs may pin %d: set LimitMEMLOCK=infinity in the systemd "
      "unit (by hand: ulimit -l unlimited; a container: --ulimit memlock=-1), or lower "
      "region_bytes",
      limit_bytes, needed));
}

absl::StatusOr<ibv_context*> OpenVerbsDevice(const std::string& name) {
  int count = 0;
  const std::unique_ptr<ibv_device*, decltype(&ibv_free_device_list)> list(
      ibv_get_device_list(&count), &ibv_free_device_list);
  if (list == nullptr || count == 0) return NoDevice();
  std::string names;
  ibv_device* chosen = nullptr;
  for (int i = 0; i < count; ++i) {
    ibv_device* device = list.get()[i];
    names += absl::StrFormat("%s%s", names.empty() ? "" : ", ", ibv_get_device_name(device));
    if (name.empty() || name == ibv_get_device_name(device)) chosen = device;
  }
  if (name.empty() && count > 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("several RDMA devices (%s): choose one", names));
  }
  if (chosen == nullptr) {
    return absl::UnavailableError(absl::StrFormat("no RDMA device %s; there are: %s", name, names));
  }
  ibv_context* context = ibv_open_device(chosen);
  if (context != nullptr) return context;
  const int error = errno;
  const std::string text = absl::StrFormat("/dev/infiniband/%s of %s: %s", chosen->dev_name,
                                           ibv_get_device_name(chosen), std::strerror(error));
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(text + "; give this user read and write (group rdma)");
  }
  return absl::UnavailableError(text + "; in a container, pass /dev/infiniband");
}

absl::Status CheckVerbs(const VerbsOptions& options) { return VerbsDevice::Open(options).status(); }

}  // namespace ckv
