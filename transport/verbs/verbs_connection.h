// One end of a connected pair of queues: sends and their completions, received messages, sleeping,
// liveness, and teardown. verbs_queues.h has the queues themselves. verbs_lane.h defines what the
// messages mean for slots.
//
// Sends are numbered and complete in order. Once send n has completed, the device no longer reads
// any buffer of sends up to n. A send requests a completion if its buffer will be used again, which
// excludes bytes that are copied inline. An inline send requests one only if kUnsignalledMax or
// more work requests are outstanding. The send queue cannot overflow: beyond kUnsignalledMax, every
// send requests a completion, and its slot is not used again before that arrives.

#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "transport/verbs/verbs_inbox.h"
#include "transport/verbs/verbs_queues.h"
#include "transport/verbs/verbs_region.h"
#include "transport/verbs/verbs_wire.h"

namespace ckv {

// Receives in addition to one per slot, for a requester's messages without a slot: a ping and a
// good-bye. Its hello and an early ping (Ask) precede the first request, so they use a slot's
// receive. In the other direction, the messages are a pong and a good-bye.
inline constexpr uint32_t kControlReceives = 2;

// Belongs to one thread.
class VerbsConnection {
 public:
  // Creates a queue pair that can post receives. `domain` must outlive it.
  //   InvalidArgument     the device supports no queue this deep, or no list this long.
  //   ResourceExhausted   a limit is reached, or the device or this process has no more resources.
  static absl::StatusOr<std::unique_ptr<VerbsConnection>> Create(const VerbsDomain* domain,
                                                                 Clock* clock,
                                                                 const VerbsLinkShape& shape);
  // Calls Leave, waits at most linger_ms_max for the last sends to arrive, stops the queue pair,
  // and only then frees anything.
  ~VerbsConnection();
  // Sends the good-bye and returns at once. The teardown may follow much later, from the
  // destructor.
  void Leave() noexcept;
  // Makes the destructor not wait for the last sends.
  void Hurry() noexcept { hurried_ = true; }
  // Stops the queue pair and cuts off transfers in progress. On return the device no longer
  // accesses any buffer; only destruction is allowed. Waits for the device, never for the peer.
  void Stop() noexcept;
  VerbsConnection(const VerbsConnection&) = delete;
  VerbsConnection& operator=(const VerbsConnection&) = delete;

  // Fills in the fields of `end` that describe this queue pair to the other end.
  void Describe(VerbsEndFrame& end) const { queues_.Describe(end); }

  // Posts all receives. Receive i is `stride` bytes at base + i x stride; if `base` is null,
  // receives are empty.
  absl::Status PostReceives(std::byte* base, uint32_t stride, uint32_t local_key);

  // Connects to the queue pair of `peer`, a checked frame.
  //   Unavailable         its address cannot be reached, or only one end uses RoCE.
  absl::Status Establish(const VerbsEndFrame& peer) { return queues_.Establish(peer); }
  // Turns on pings and good-byes: from now on they are handled, and a silent peer is detected.
  void Start();
  // Sends a requester's ping. It may be called once before Start; the pong then arrives after
  // Start. The connection fails if the holder's queue pair no longer exists. The early ping uses a
  // slot's receive, because those are still unused.
  void Ask() noexcept;
  // Returns how often an idle end checks that the other end is alive.
  Duration probe_interval() const noexcept;

  // OK while the connection is up; see Lane::status.
  const absl::Status& status() const noexcept { return status_; }
  // The reason why the connection ended, as soon as it is known. status() returns it once the
  // earlier messages have been taken.
  const absl::Status& failure() const noexcept { return failed_; }
  int event_fd() const noexcept { return queues_.event_fd(); }
  // Like Lane::Arm. `blocked` means that the message at the front waits for the completion of a
  // send.
  bool Arm(bool blocked) noexcept;
  void Disarm() noexcept;

  // Returns the oldest message, or null. The message stays until Pop. Pings, pongs and good-byes
  // after Start are handled here and not returned.
  const VerbsMessage* Front() noexcept;
  void Pop() noexcept { inbox_.Pop(); }
  // Posts a receive again after its message has been read.
  void Repost(uint32_t buffer) noexcept;
  // Call it after a poll that found nothing. Every 256th call checks the clock and the alarm.
  void NoteEmpty() noexcept;

  // Returns whether the device copies a send of this size when it is posted.
  bool inlines(uint32_t bytes) const noexcept { return bytes <= queues_.inline_bytes_max(); }
  // Posts a chain of `count` work requests and returns a number for reading(). If `copied`, they
  // are inline. The number is 0 if the chain needs no completion. Send sets wr_id and send_flags.
  uint64_t Send(ibv_send_wr* first, ibv_send_wr* last, uint32_t count, bool copied) noexcept;
  // Sends a message without a slot. `body` must be short enough to be inline.
  void SendControl(VerbsControl control, std::span<const std::byte> body = {}) noexcept;
  // Binds `key` to [address, address + bytes) of `region`, for this queue pair only. `window` was
  // allocated in this domain; the connection takes ownership of it.
  void BindWindow(ibv_mw* window, uint32_t key, const VerbsRegion& region, uint64_t address,
                  uint64_t bytes) noexcept;

  // Returns whether the device may still read the buffers of send `number`. A copied chain has no
  // buffers to read.
  bool reading(uint64_t number) const noexcept { return number > retired_; }
  // Takes the completions of sends, as Front also does.
  void Reap() noexcept;

  // Fails the connection because the peer broke the protocol.
  void Break(absl::Status status) noexcept;

 private:
  VerbsConnection(const VerbsDomain* domain, Clock* clock, const VerbsLinkShape& shape);

  void Harvest() noexcept;
  void Take(const ibv_wc& completion) noexcept;
  bool Understand(const VerbsMessage& message) noexcept;
  void RepostTaken() noexcept;
  void Tick(Instant now) noexcept;
  void Fail(absl::Status status) noexcept;
  void CheckAlarm() noexcept;
  void SayGoodbye() noexcept;
  void Linger() noexcept;

  const VerbsDomain* const domain_;
  Clock* const clock_;
  const VerbsLinkShape shape_;
  VerbsQueues queues_;

  // Receive 0. It has no bytes if receives are empty.
  ibv_sge receive_{};
  bool started_ = false;

  VerbsInbox inbox_;             // at most one message per receive
  std::vector<uint32_t> taken_;  // empty receives to be posted again, in one chain

  uint64_t posted_ = 0, retired_ = 0;
  // failed_ is set as soon as the end is known, status_ only after the earlier messages were taken.
  absl::Status failed_, status_;
  bool dead_ = false;  // nothing can be sent any more
  bool bye_sent_ = false;
  bool left_ = false, stopped_ = false, hurried_ = false;

  // Liveness. heard_: a message arrived since the last check.
  uint32_t empty_polls_ = 0;
  Instant probed_;
  bool probing_ = false, heard_ = false;
  uint64_t probe_number_ = 0;  // at a holder
  bool pong_due_ = false;      // at a holder: a pong waits for the last one's completion
  uint64_t pong_number_ = 0;
};

}  // namespace ckv
