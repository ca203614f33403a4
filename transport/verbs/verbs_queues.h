// The queue pair of one end of a verbs connection, its completion queues and its events.
// verbs_connection.h decides what is sent over them.

#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "transport/socket.h"
#include "transport/verbs/verbs_budget.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_region.h"
#include "transport/verbs/verbs_wire.h"

namespace ckv {

struct VerbsLinkShape {
  uint32_t receive_count = 0;  // posted from the start
  uint32_t send_count = 0;     // work requests of all slots at once
  uint32_t sge_count = 1;      // entries of one work request
  bool requester = false;
};

// The maximum number of work requests in a row without a requested completion. At 16, one
// completion is polled per 16 probes, and the queue needs 16 more work requests.
inline constexpr uint32_t kUnsignalledMax = 16;

// Belongs to one thread. Except Create, Describe and Establish, call functions only after Create
// returned OK.
class VerbsQueues {
 public:
  // `domain` must outlive this object.
  VerbsQueues(const VerbsDomain* domain, const VerbsLinkShape& shape);
  // Returns when the device no longer accesses any buffer.
  ~VerbsQueues();
  VerbsQueues(const VerbsQueues&) = delete;
  VerbsQueues& operator=(const VerbsQueues&) = delete;

  // Creates a queue pair that can post receives. Call it once.
  //   InvalidArgument     the device supports no queue this deep, or no list this long.
  //   ResourceExhausted   a limit is reached, or the device or this process has no more resources.
  absl::Status Create();
  // Fills in the fields of `end` that describe this queue pair to the other end.
  void Describe(VerbsEndFrame& end) const;
  // Connects to the queue pair of `peer`, a checked frame.
  //   Unavailable         its address cannot be reached, or only one end uses RoCE.
  absl::Status Establish(const VerbsEndFrame& peer);
  bool established() const noexcept { return established_; }

  // Becomes readable when an armed queue has a completion, when the alarm is raised, and at every
  // tick of the timer.
  int event_fd() const noexcept { return epoll_.get(); }
  // Wakes a sleeper every `period_ms` from now on, by itself.
  void StartTimer(uint32_t period_ms) noexcept;
  // Takes the events of the queues and the timer. Does not wait.
  void DrainEvents() noexcept;
  // Waits for an event of the queues, at most `timeout_ms`. Returns poll's result.
  int AwaitEvent(int timeout_ms) noexcept;
  // The first event that is not a completion, or -1.
  int alarm() const noexcept { return alarm_->event(); }

  // The largest send that the device copies when it is posted.
  uint32_t inline_bytes_max() const noexcept { return inline_bytes_max_; }

  // Each returns false if the device refuses.
  bool ArmReceives() noexcept { return ibv_req_notify_cq(receive_queue_.get(), 0) == 0; }
  bool ArmSends() noexcept { return ibv_req_notify_cq(send_queue_.get(), 0) == 0; }
  bool PostReceives(ibv_recv_wr* first) noexcept {
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(pair_.get(), first, &bad) == 0;
  }
  bool PostSends(ibv_send_wr* first) noexcept {
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(pair_.get(), first, &bad) == 0;
  }
  // Take completions. Return how many, or a negative number if the device refuses.
  int PollReceives(std::span<ibv_wc> completions) noexcept {
    return ibv_poll_cq(receive_queue_.get(), static_cast<int>(completions.size()),
                       completions.data());
  }
  int PollSends(std::span<ibv_wc> completions) noexcept {
    return ibv_poll_cq(send_queue_.get(), static_cast<int>(completions.size()), completions.data());
  }

  // Takes ownership of a window that is bound to this queue pair.
  void TakeWindow(ibv_mw* window) noexcept { window_.reset(window); }

  // Stops the queue pair: every send completes now, as flushed. Nothing is transferred any more.
  void StopPair() noexcept;
  void FreeWindow() noexcept { window_.reset(); }
  // Returns when the device no longer accesses any buffer.
  void DestroyPair() noexcept { pair_.reset(); }
  bool has_pair() const noexcept { return pair_ != nullptr; }

 private:
  absl::Status CreateQueues();
  absl::Status CreateQueuePair();
  absl::Status Modify(ibv_qp_attr& attributes, int mask, const char* what);

  struct Destroy {
    void operator()(ibv_comp_channel* channel) const { (void)ibv_destroy_comp_channel(channel); }
    void operator()(ibv_cq* queue) const { (void)ibv_destroy_cq(queue); }
    void operator()(ibv_qp* pair) const { (void)ibv_destroy_qp(pair); }
    void operator()(ibv_mw* window) const { (void)ibv_dealloc_mw(window); }
  };

  const VerbsDomain* const domain_;
  const VerbsLinkShape shape_;
  UniqueFd epoll_, timer_;
  std::optional<VerbsAlarm> alarm_;
  VerbsBudget::Grant grant_;
  std::unique_ptr<ibv_comp_channel, Destroy> channel_;
  std::unique_ptr<ibv_cq, Destroy> receive_queue_, send_queue_;
  std::unique_ptr<ibv_qp, Destroy> pair_;
  std::unique_ptr<ibv_mw, Destroy> window_;
  uint32_t packet_sequence_ = 0;
  uint32_t inline_bytes_max_ = 0;
  bool established_ = false;
};

}  // namespace ckv
