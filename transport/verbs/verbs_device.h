// One opened RDMA device: its port, its limits, its asynchronous events, and how much of it is in
// use.

#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "transport/socket.h"
#include "transport/verbs/verbs_budget.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv {

// The address at which other hosts reach this port.
struct VerbsAddress {
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;
  bool ethernet = false;
  ibv_mtu mtu = IBV_MTU_1024;
  int gid_index = 0;
};

// Reports to a lane an event of its queues that is not a completion. The device's thread raises the
// alarm, and the lane's thread reads it. The alarm must outlive the queues that have it as context.
class VerbsAlarm {
 public:
  // Borrows `timer_fd`, which Raise fires to wake a sleeping lane.
  explicit VerbsAlarm(int timer_fd) : timer_fd_(timer_fd) {}

  void Raise(ibv_event_type event) noexcept;
  // Returns the first event, or -1.
  int event() const noexcept { return event_.load(std::memory_order_relaxed); }

 private:
  const int timer_fd_;
  std::atomic<int> event_{-1};
};

// Thread-safe. Lanes share the device and keep it open.
class VerbsDevice {
 public:
  // Opens the device and reads its limits. Returns CheckVerbs's errors.
  static absl::StatusOr<std::shared_ptr<VerbsDevice>> Open(const VerbsOptions& options);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  ibv_context* context() const noexcept { return context_.get(); }
  const VerbsOptions& options() const noexcept { return options_; }
  const ibv_device_attr& limits() const noexcept { return limits_; }
  const VerbsAddress& address() const noexcept { return address_; }
  // The maximum bytes of a work request: the smaller of the options' and the port's limit, a
  // multiple of 64.
  uint32_t segment_bytes() const noexcept { return segment_bytes_; }
  uint32_t message_bytes_max() const noexcept { return message_bytes_max_; }
  bool windows() const noexcept { return windows_; }
  VerbsBudget& budget() const noexcept { return *budget_; }

  // Checks the port's state now.
  //   Unavailable         the port is down.
  absl::Status CheckPort() const;

  // From Watch to Unwatch, an event of the port or the whole device raises the alarm. An event of a
  // queue pair or completion queue raises the alarm that is its context.
  void Watch(VerbsAlarm* alarm) ABSL_LOCKS_EXCLUDED(mu_);
  void Unwatch(VerbsAlarm* alarm) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Close {
    void operator()(ibv_context* context) const { ibv_close_device(context); }
  };
  using Context = std::unique_ptr<ibv_context, Close>;

  VerbsDevice(const VerbsOptions& options, Context context);
  absl::Status ReadLimits();
  absl::Status ReadPort();
  absl::Status ChooseGid();
  absl::Status StartEvents();
  void RunEvents();
  void Dispatch(const ibv_async_event& event) ABSL_LOCKS_EXCLUDED(mu_);

  const VerbsOptions options_;
  const Context context_;
  const std::shared_ptr<VerbsBudget> budget_;
  // Constant after Open.
  ibv_device_attr limits_{};
  VerbsAddress address_;
  uint32_t segment_bytes_ = 0;
  uint32_t message_bytes_max_ = 0;
  bool windows_ = false;

  absl::Mutex mu_;
  absl::flat_hash_set<VerbsAlarm*> alarms_ ABSL_GUARDED_BY(mu_);
  UniqueFd stop_;
  std::thread events_;
};

}  // namespace ckv
