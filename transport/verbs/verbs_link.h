// One end of a connected pair of queues: bring-up, sends and their completions, messages that have
// come, sleeping, liveness, and the end. What the messages mean for slots is verbs_lane.h's.
//
// Sends are numbered, and complete in order: once send n has completed, the device no longer reads
// any buffer of sends up to n. A completion is asked for when somebody waits for it (the buffer is
// to be used again, so never for what was copied inline) and else for every kUnsignalledMax-th. The
// send queue cannot overflow: what is posted beyond kUnsignalledMax has a completion asked for, and
// keeps its slot from being used until that comes.

#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "transport/socket.h"
#include "transport/verbs_device.h"
#include "transport/verbs_note.h"
#include "transport/verbs_region.h"

namespace ckv {

// Receives beside one a slot, for what a requester sends without a slot: a ping and a good-bye. Its
// hello, and an early ping (Ask), come before the first request and so find a slot's free. The
// other way: a pong and a good-bye.
inline constexpr uint32_t kControlReceives = 2;

struct VerbsLinkShape {
  uint32_t receive_count = 0;  // posted from the start
  uint32_t send_count = 0;     // work requests of all slots at once
  uint32_t sge_count = 1;      // of one work request
  bool requester = false;
};

// A message that has come.
struct VerbsMessage {
  VerbsImmediate immediate;
  uint32_t buffer = 0;  // the receive that got it
  uint32_t bytes = 0;   // of the last work request
  bool write = false;   // by RDMA, into the landing region
};

// Belongs to one thread.
class VerbsLink {
 public:
  // Unsignalled sends at most. 16: one completion polled for 16 probes, and 16 work requests more
  // in the queue.
  static constexpr uint32_t kUnsignalledMax = 16;

  // A queue pair that can post receives. `domain` must outlive it.
  //   InvalidArgument     the device has no queue as deep.
  //   ResourceExhausted   a limit, or what the device or this process has.
  static absl::StatusOr<std::unique_ptr<VerbsLink>> Create(const VerbsDomain* domain, Clock* clock,
                                                           const VerbsLinkShape& shape);
  // Says good-bye, waits a little for what was sent, then stops the queue pair, and only then
  // lets go of anything.
  ~VerbsLink();
  // The part of that which waits for nobody: good-bye. The rest may come much later.
  void Leave() noexcept;
  // The end will not wait for what was sent.
  void Hurry() noexcept { hurried_ = true; }
  // The device lets go of every buffer: what is under way is cut. Waits for the device, never for
  // the peer. After it, only the end.
  void Stop() noexcept;
  VerbsLink(const VerbsLink&) = delete;
  VerbsLink& operator=(const VerbsLink&) = delete;

  // The queue pair's part of what the other end must know.
  void Describe(VerbsEndFrame& end) const;

  // Posts all receives: receive i is `stride` bytes at base + i x stride, or empty if base is null.
  absl::Status PostReceives(std::byte* base, uint32_t stride, uint32_t local_key);

  // Connects to the queue pair of `peer`, which was checked.
  //   Unavailable         its address cannot be reached.
  absl::Status Establish(const VerbsEndFrame& peer);
  // From now on, pings and good-byes are understood and the peer's silence is noticed.
  void Start();
  // A requester's one ping before Start, whose pong comes after it: fails the link if the holder's
  // queue pair has gone. The slots' receives, unused so early, have room for it.
  void Ask() noexcept;
  Duration probe_interval() const noexcept;

  // OK while the link is up; see Lane::status.
  const absl::Status& status() const noexcept { return status_; }
  // Its end as soon as it is known; status() tells when what came before has been taken.
  const absl::Status& failure() const noexcept { return failed_; }
  int event_fd() const noexcept { return epoll_.get(); }
  // As Lane::Arm. `blocked`: what is at the front waits for the completion of a send.
  bool Arm(bool blocked) noexcept;
  void Disarm() noexcept;

  // The oldest message, or null. It stays until Pop. Control messages that Start makes understood
  // are not shown.
  const VerbsMessage* Front() noexcept;
  void Pop() noexcept { inbox_begin_ = (inbox_begin_ + 1) % inbox_.size(), --inbox_count_; }
  // A receive whose message has been read.
  void Repost(uint32_t buffer) noexcept;
  // After a poll that gave nothing.
  void NoteEmpty() noexcept;

  // The device copies the bytes of a send that short as it is posted.
  bool inlines(uint32_t bytes) const noexcept { return bytes <= inline_bytes_max_; }
  // Posts a chain of `count` work requests and returns the number of the last. `copied`: they are
  // inline. Fields of completion and flags are filled in here.
  uint64_t Send(ibv_send_wr* first, ibv_send_wr* last, uint32_t count, bool copied) noexcept;
  // A message without a slot.
  void SendControl(VerbsControl control, std::span<const std::byte> body = {}) noexcept;
  // Makes `key` the name of [address, address + bytes) of `region`, for this queue pair only.
  // `window` was allocated in this domain and is ours from here on.
  void BindWindow(ibv_mw* window, uint32_t key, const VerbsRegion& region, uint64_t address,
                  uint64_t bytes) noexcept;

  // Whether the device still reads the buffers of send `number`. A chain that was copied has none.
  bool reading(uint64_t number) const noexcept { return number > retired_; }
  // Takes completions of sends. Front does so too.
  void Reap() noexcept;

  // The end, for what the peer did.
  void Break(absl::Status status) noexcept;

 private:
  VerbsLink(const VerbsDomain* domain, Clock* clock, const VerbsLinkShape& shape);

  absl::Status CreateQueues();
  absl::Status CreateQueuePair();
  absl::Status Modify(ibv_qp_attr& attributes, int mask, const char* what);
  void Harvest() noexcept;
  void Take(const ibv_wc& completion) noexcept;
  bool Understand(const VerbsMessage& message) noexcept;
  void RepostTaken() noexcept;
  void Tick(Instant now) noexcept;
  void Fail(absl::Status status) noexcept;
  void FailFor(const ibv_wc& completion, const char* what) noexcept;
  void CheckAlarm() noexcept;
  void DrainEvents() noexcept;
  void SayGoodbye() noexcept;
  void Linger() noexcept;

  struct Destroy {
    void operator()(ibv_comp_channel* channel) const { (void)ibv_destroy_comp_channel(channel); }
    void operator()(ibv_cq* queue) const { (void)ibv_destroy_cq(queue); }
    void operator()(ibv_qp* pair) const { (void)ibv_destroy_qp(pair); }
    void operator()(ibv_mw* window) const { (void)ibv_dealloc_mw(window); }
  };

  const VerbsDomain* const domain_;
  Clock* const clock_;
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
  ibv_sge receive_{};  // of receive 0; no bytes: empty receives
  bool established_ = false, started_ = false;

  // Messages that have come and were not taken: never more than receives.
  std::vector<VerbsMessage> inbox_;
  size_t inbox_begin_ = 0, inbox_count_ = 0;
  std::vector<uint32_t> taken_;  // empty receives to be posted again, in one chain

  uint64_t posted_ = 0, retired_ = 0;
  // failed_ is the end as it is known, status_ as it is told: after what came before it.
  absl::Status failed_, status_;
  bool dead_ = false;  // nothing can be sent any more
  bool bye_sent_ = false;
  bool left_ = false, stopped_ = false, hurried_ = false;

  // Liveness. heard_: something came since the last look.
  uint32_t empty_polls_ = 0;
  Instant probed_;
  bool probing_ = false, heard_ = false;
  uint64_t probe_number_ = 0;  // a holder's
  bool pong_due_ = false;      // a holder's: the last pong is still on its way
  uint64_t pong_number_ = 0;
};

}  // namespace ckv
