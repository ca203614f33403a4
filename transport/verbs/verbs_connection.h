// One end of a connected pair of queues: bring-up, sends and their completions, messages that
// arrived, sleeping, liveness, and teardown. verbs_lane.h gives the messages their meaning for
// slots.
//
// Sends are numbered and complete in order. Once send n has completed, the device no longer reads
// any buffer of sends up to n. The connection asks for a completion if somebody waits for it,
// because the buffer will be used again; so never for bytes copied inline. Otherwise it asks for
// every kUnsignalledMax-th. The send queue cannot overflow: beyond kUnsignalledMax, every send has
// a completion asked for, and its slot is not used before that comes.

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
#include "proto/base/clock.h"
#include "transport/socket.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_note.h"
#include "transport/verbs/verbs_region.h"

namespace ckv {

// Receives beyond one per slot, for a requester's messages without a slot: a ping and a good-bye.
// Its hello and an early ping (Ask) come before the first request, so they use a slot's receive. In
// the other direction there are a pong and a good-bye.
inline constexpr uint32_t kControlReceives = 2;

struct VerbsLinkShape {
  uint32_t receive_count = 0;  // posted from the start
  uint32_t send_count = 0;     // work requests of all slots at once
  uint32_t sge_count = 1;      // entries of one work request
  bool requester = false;
};

// A message that arrived.
struct VerbsMessage {
  VerbsImmediate immediate;
  uint32_t buffer = 0;  // number of the receive that got it
  uint32_t bytes = 0;   // bytes of the last work request
  bool write = false;   // written by RDMA into the landing region
};

// Belongs to one thread.
class VerbsConnection {
 public:
  // The largest number of sends without a completion asked for. At 16, one completion is polled per
  // 16 probes, and the queue needs 16 more work requests.
  static constexpr uint32_t kUnsignalledMax = 16;

  // Makes a queue pair that can post receives. `domain` must outlive it.
  //   InvalidArgument     the device has no queue this deep.
  //   ResourceExhausted   a limit is reached, or the device or this process has run out.
  static absl::StatusOr<std::unique_ptr<VerbsConnection>> Create(const VerbsDomain* domain,
                                                                 Clock* clock,
                                                                 const VerbsLinkShape& shape);
  // Leaves, waits a little for the last sends to arrive, stops the queue pair, and only then frees
  // anything.
  ~VerbsConnection();
  // Sends the good-bye and returns at once. The teardown may follow much later, from the
  // destructor.
  void Leave() noexcept;
  // Makes the destructor not wait for the last sends.
  void Hurry() noexcept { hurried_ = true; }
  // Stops the queue pair and cuts off transfers in progress. On return the device no longer touches
  // any buffer; only destruction is allowed. Waits for the device, never for the peer.
  void Stop() noexcept;
  VerbsConnection(const VerbsConnection&) = delete;
  VerbsConnection& operator=(const VerbsConnection&) = delete;

  // Fills in the fields of `end` that describe this queue pair to the other end.
  void Describe(VerbsEndFrame& end) const;

  // Posts all receives. Receive i is `stride` bytes at base + i x stride; if `base` is null, it is
  // empty.
  absl::Status PostReceives(std::byte* base, uint32_t stride, uint32_t local_key);

  // Connects to the queue pair of `peer`, a checked frame.
  //   Unavailable         its address cannot be reached.
  absl::Status Establish(const VerbsEndFrame& peer);
  // Turns on pings and good-byes: from now on they are understood, and a silent peer is noticed.
  void Start();
  // Sends a requester's one ping before Start; its pong arrives after Start. The connection fails
  // if the holder's queue pair has gone. The slots' receives have room for the ping, because they
  // are still unused.
  void Ask() noexcept;
  Duration probe_interval() const noexcept;
  // How often an idle end asks whether the other end is there.

  // OK while the connection is up; see Lane::status.
  const absl::Status& status() const noexcept { return status_; }
  // The reason for the end, as soon as it is known. status() tells it once the earlier messages
  // have been taken.
  const absl::Status& failure() const noexcept { return failed_; }
  int event_fd() const noexcept { return epoll_.get(); }
  // Like Lane::Arm. `blocked` says that the message at the front waits for the completion of a
  // send.
  bool Arm(bool blocked) noexcept;
  void Disarm() noexcept;

  // Returns the oldest message, or null. It stays until Pop. Pings, pongs and good-byes after Start
  // are handled here and not returned.
  const VerbsMessage* Front() noexcept;
  void Pop() noexcept { inbox_begin_ = (inbox_begin_ + 1) % inbox_.size(), --inbox_count_; }
  // Posts a receive again after its message has been read.
  void Repost(uint32_t buffer) noexcept;
  // Call after a poll that found nothing: looks at the clock and the alarm now and then.
  void NoteEmpty() noexcept;

  // Whether the device copies a send of this size as it is posted.
  bool inlines(uint32_t bytes) const noexcept { return bytes <= inline_bytes_max_; }
  // Posts a chain of `count` work requests and returns a number for reading(). If `copied`, they
  // are inline. The number is 0 if the chain needs no completion. Send fills in the fields of
  // completion and flags.
  uint64_t Send(ibv_send_wr* first, ibv_send_wr* last, uint32_t count, bool copied) noexcept;
  // Sends a message without a slot.
  void SendControl(VerbsControl control, std::span<const std::byte> body = {}) noexcept;
  // Makes `key` the name of [address, address + bytes) of `region`, for this queue pair only.
  // `window` was allocated in this domain; the connection takes it over.
  void BindWindow(ibv_mw* window, uint32_t key, const VerbsRegion& region, uint64_t address,
                  uint64_t bytes) noexcept;

  // Whether the device still reads the buffers of send `number`. A copied chain has no buffers to
  // read.
  bool reading(uint64_t number) const noexcept { return number > retired_; }
  // Takes the completions of sends. Front does so too.
  void Reap() noexcept;

  // Fails the connection because the peer broke the protocol.
  void Break(absl::Status status) noexcept;

 private:
  VerbsConnection(const VerbsDomain* domain, Clock* clock, const VerbsLinkShape& shape);

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
  // Receive 0. It has no bytes if receives are empty.
  ibv_sge receive_{};
  bool established_ = false, started_ = false;

  // Messages that arrived and were not taken: never more than receives.
  std::vector<VerbsMessage> inbox_;
  size_t inbox_begin_ = 0, inbox_count_ = 0;
  std::vector<uint32_t> taken_;  // empty receives to be posted again, in one chain

  uint64_t posted_ = 0, retired_ = 0;
  // failed_ is the end as soon as it is known. status_ tells it after the messages that came
  // before.
  absl::Status failed_, status_;
  bool dead_ = false;  // nothing can be sent any more
  bool bye_sent_ = false;
  bool left_ = false, stopped_ = false, hurried_ = false;

  // Liveness. heard_: a message came since the last look.
  uint32_t empty_polls_ = 0;
  Instant probed_;
  bool probing_ = false, heard_ = false;
  uint64_t probe_number_ = 0;  // at a holder
  bool pong_due_ = false;      // at a holder: the last pong is still on its way
  uint64_t pong_number_ = 0;
};

}  // namespace ckv
