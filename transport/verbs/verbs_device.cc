// Opens a device. Open, in order: checks the options and the limit of locked memory; opens it;
// ReadLimits, ReadPort, ChooseGid; StartEvents starts the thread that waits for asynchronous
// events. Dispatch gives each event to the alarm of its lane, or logs it. The device waits for this
// thread when a queue is destroyed, so an alarm outlives its events.

#include "transport/verbs/verbs_device.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "transport/verbs/verbs_check.h"
#include "transport/verbs/verbs_wire.h"

namespace ckv {
namespace {

uint32_t MtuBytes(ibv_mtu mtu) { return 128u << mtu; }

bool IsIpv4Mapped(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

}  // namespace

void VerbsAlarm::Raise(ibv_event_type event) noexcept {
  int none = -1;
  event_.compare_exchange_strong(none, event, std::memory_order_relaxed);
  const itimerspec now = {{0, 0}, {0, 1}};
  (void)timerfd_settime(timer_fd_, 0, &now, nullptr);
}

VerbsDevice::VerbsDevice(const VerbsOptions& options, Context context)
    : options_(options),
      context_(std::move(context)),
      budget_(std::make_shared<VerbsBudget>(options)) {}

absl::StatusOr<std::shared_ptr<VerbsDevice>> VerbsDevice::Open(const VerbsOptions& options) {
  CKV_RETURN_IF_ERROR(CheckVerbsOptions(options));
  CKV_RETURN_IF_ERROR(CheckLockedMemory(options));
  CKV_ASSIGN_OR_RETURN(ibv_context * opened, OpenVerbsDevice(options.device));
  std::shared_ptr<VerbsDevice> device(new VerbsDevice(options, Context(opened)));
  CKV_RETURN_IF_ERROR(device->ReadLimits());
  CKV_RETURN_IF_ERROR(device->ReadPort());
  CKV_RETURN_IF_ERROR(device->ChooseGid());
  CKV_RETURN_IF_ERROR(device->StartEvents());
  return device;
}

VerbsDevice::~VerbsDevice() {
  if (!events_.joinable()) return;
  const uint64_t one = 1;
  CKV_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  events_.join();
}

absl::Status VerbsDevice::ReadLimits() {
  if (const int error = ibv_query_device(context_.get(), &limits_); error != 0) {
    errno = error;
    return ErrnoStatus("ibv_query_device");
  }
  windows_ = options_.windows && (limits_.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
  return absl::OkStatus();
}

absl::Status VerbsDevice::ReadPort() {
  const char* name = ibv_get_device_name(context_->device);
  if (options_.port > limits_.phys_port_cnt) {
    return absl::InvalidArgumentError(absl::StrFormat("%s has %d ports, the options choose port %d",
                                                      name, limits_.phys_port_cnt, options_.port));
  }
  CKV_RETURN_IF_ERROR(CheckPort());
  ibv_port_attr port = {};
  if (ibv_query_port(context_.get(), options_.port, &port) != 0) {
    return ErrnoStatus("ibv_query_port");
  }
  address_.lid = port.lid;
  address_.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  address_.mtu = port.active_mtu;
  if (options_.mtu_bytes != 0) {
    if (options_.mtu_bytes > MtuBytes(port.active_mtu)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("MTU %d: port %d of %s has %d; raise its network's or lower the option",
                          options_.mtu_bytes, options_.port, name, MtuBytes(port.active_mtu)));
    }
    while (MtuBytes(address_.mtu) > options_.mtu_bytes) {
      address_.mtu = static_cast<ibv_mtu>(address_.mtu - 1);
    }
  }
  message_bytes_max_ = std::min(port.max_msg_sz, 1u << 31);
  segment_bytes_ = std::min(options_.segment_bytes, message_bytes_max_ / 64 * 64);
  if (segment_bytes_ < kSegmentBytesMin) {
    return absl::InvalidArgumentError(absl::StrFormat("%s moves %d bytes at once, need %d", name,
                                                      message_bytes_max_, kSegmentBytesMin));
  }
  return absl::OkStatus();
}

absl::Status VerbsDevice::CheckPort() const {
  ibv_port_attr port = {};
  if (const int error = ibv_query_port(context_.get(), options_.port, &port); error != 0) {
    errno = error;
    return ErrnoStatus("ibv_query_port");
  }
  if (port.state == IBV_PORT_ACTIVE) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "port %d of %s is %s: bring its network up (ip link set DEVICE up, or a subnet manager)",
      options_.port, ibv_get_device_name(context_->device), ibv_port_state_str(port.state)));
}

absl::Status VerbsDevice::ChooseGid() {
  constexpr size_t kGidCountMax = 256;
  std::array<ibv_gid_entry, kGidCountMax> gids;
  const ssize_t found = ibv_query_gid_table(context_.get(), gids.data(), gids.size(), 0);
  const size_t count = found < 0 ? 0 : static_cast<size_t>(found);
  const ibv_gid_entry* chosen = nullptr;
  const auto rank = [](const ibv_gid_entry& entry) {
    return entry.gid_type != IBV_GID_TYPE_ROCE_V2 ? 0 : IsIpv4Mapped(entry.gid) ? 2 : 1;
  };
  std::string usable;
  for (const ibv_gid_entry& entry : std::span(gids).first(count)) {
    if (entry.port_num != options_.port) continue;
    usable += absl::StrFormat("%s%d", usable.empty() ? "" : ", ", entry.gid_index);
    if (options_.gid_index >= 0) {
      if (entry.gid_index == static_cast<uint32_t>(options_.gid_index)) chosen = &entry;
    } else if (chosen == nullptr || rank(entry) > rank(*chosen)) {
      chosen = &entry;
    }
  }
  if (chosen == nullptr && options_.gid_index >= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "GID index %d of %s is empty; there are: %s", options_.gid_index,
        ibv_get_device_name(context_->device), usable.empty() ? "none" : usable.c_str()));
  }
  if (chosen == nullptr) {
    if (!address_.ethernet) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrFormat("%s has no GID: give its network device an IP address",
                        ibv_get_device_name(context_->device)));
  }
  std::copy(std::begin(chosen->gid.raw), std::end(chosen->gid.raw), address_.gid.begin());
  address_.gid_index = static_cast<int>(chosen->gid_index);
  return absl::OkStatus();
}

absl::Status VerbsDevice::StartEvents() {
  const int flags = fcntl(context_->async_fd, F_GETFL);
  if (flags < 0 || fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus("fcntl of the device");
  }
  stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!stop_.valid()) return ErrnoStatus("eventfd");
  events_ = std::thread([this] { RunEvents(); });
  return absl::OkStatus();
}

void VerbsDevice::RunEvents() {
  pollfd entries[] = {{context_->async_fd, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (true) {
    if (poll(entries, 2, -1) < 0 && errno != EINTR) return;
    if (entries[1].revents != 0) return;
    ibv_async_event event = {};
    while (ibv_get_async_event(context_.get(), &event) == 0) {
      Dispatch(event);
      // Destroying a queue waits for this call, so the alarm was still there.
      ibv_ack_async_event(&event);
    }
  }
}

void VerbsDevice::Dispatch(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      static_cast<VerbsAlarm*>(event.element.qp->qp_context)->Raise(event.event_type);
      return;
    case IBV_EVENT_CQ_ERR:
      static_cast<VerbsAlarm*>(event.element.cq->cq_context)->Raise(event.event_type);
      return;
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num != options_.port) return;
      [[fallthrough]];
    case IBV_EVENT_DEVICE_FATAL: {
      absl::MutexLock lock(&mu_);
      for (VerbsAlarm* alarm : alarms_) alarm->Raise(event.event_type);
      return;
    }
    default:
      return;  // new connections, active ports, and last receives used
  }
}

void VerbsDevice::Watch(VerbsAlarm* alarm) {
  absl::MutexLock lock(&mu_);
  alarms_.insert(alarm);
}

void VerbsDevice::Unwatch(VerbsAlarm* alarm) {
  absl::MutexLock lock(&mu_);
  alarms_.erase(alarm);
}

}  // namespace ckv
