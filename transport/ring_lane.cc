#include "transport/ring_lane.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "transport/slot_ring.h"
#include "transport/slots.h"

namespace ckv {
namespace {

// Empty polls between two looks at the doorbell while spinning. A poll is some 5 ns and a look 300
// ns, so it costs a spinner a fifth of its (idle) time and finds a dead peer within microseconds; a
// loop over 16 lanes at 1 us a round within 5 ms.
constexpr uint32_t kPeerLookInterval = 256;
constexpr int kDoorbellReadsMax = 16;  // reads of 64 bytes; a peer that floods wakes us needlessly

// What both ends have in common: two rings, the doorbell, the lane's status.
class RingLink {
 public:
  RingLink(RingMemory* out, RingMemory* in, uint32_t slot_count, uint32_t in_bytes_max,
           UniqueFd doorbell)
      : writer_(out),
        reader_(in),
        slot_count_(slot_count),
        in_bytes_max_(in_bytes_max),
        doorbell_(std::move(doorbell)) {}

  const absl::Status& status() const noexcept { return status_; }
  int event_fd() const noexcept { return doorbell_.get(); }

  void Send(uint32_t slot, uint32_t bytes) noexcept {
    if (!writer_.Write(slot, bytes)) return;
    const char bell = 1;
    // A full socket buffer wakes as well, and a dead peer is found by the next look.
    (void)send(doorbell_.get(), &bell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // The peer's next message, its slot and bytes inside the lane's shape.
  bool Receive(RingEntry& entry) noexcept {
    if (!status_.ok()) return false;
    RingReader::Look look = reader_.Read(entry);
    if (look == RingReader::Look::kEmpty) {
      if (++empty_polls_ < kPeerLookInterval) return false;
      empty_polls_ = 0;
      const bool peer_is_there = DrainDoorbell();
      // What it sent before it rang, or before it went, still counts.
      look = reader_.Read(entry);
      if (look == RingReader::Look::kEmpty) {
        if (peer_is_there) return false;
        Break(absl::UnavailableError("the peer has closed its end of the lane"));
        return false;
      }
    }
    if (look == RingReader::Look::kBroken) {
      Break(absl::InvalidArgumentError(
          absl::StrFormat("the peer broke the ring: entry of lap %d", entry.lap)));
      return false;
    }
    if (entry.slot >= slot_count_ || entry.bytes > in_bytes_max_) {
      Break(absl::InvalidArgumentError(
          absl::StrFormat("the peer sent slot %d of %d, %d bytes of %d", entry.slot, slot_count_,
                          entry.bytes, in_bytes_max_)));
      return false;
    }
    return true;
  }

  bool Arm() noexcept { return status_.ok() && reader_.Arm(); }

  void Disarm() noexcept {
    reader_.Disarm();
    // If the peer has gone and nothing is left in the ring, the next poll says so.
    (void)DrainDoorbell();
    empty_polls_ = kPeerLookInterval;
  }

  void Break(absl::Status status) noexcept {
    if (!status_.ok()) return;
    status_ = std::move(status);
    // The peer learns of it now, not when the owner gets round to destroying this end.
    shutdown(doorbell_.get(), SHUT_RDWR);
  }

 private:
  // Takes the bells that rang; false if the peer has hung up. Not a peek: a bell that nobody took
  // would hide the hang-up behind it.
  bool DrainDoorbell() noexcept {
    char bells[64];
    for (int i = 0; i < kDoorbellReadsMax; ++i) {
      const ssize_t got = recv(doorbell_.get(), bells, sizeof(bells), MSG_DONTWAIT);
      if (got < 0) return errno == EAGAIN || errno == EINTR;
      if (got == 0) return false;
    }
    return true;
  }

  RingWriter writer_;
  RingReader reader_;
  const uint32_t slot_count_;
  const uint32_t in_bytes_max_;
  UniqueFd doorbell_;
  uint32_t empty_polls_ = 0;
  absl::Status status_;
};

class RingRequestLane final : public RequestLane {
 public:
  RingRequestLane(FabricKind kind, std::shared_ptr<const LaneMemory> memory, UniqueFd doorbell)
      : kind_(kind),
        memory_(std::move(memory)),
        link_(&memory_->control()->requests, &memory_->control()->replies, shape().slot_count,
              shape().reply_bytes_max, std::move(doorbell)),
        slots_(shape().slot_count) {}

  FabricKind kind() const noexcept override { return kind_; }
  const LaneShape& shape() const noexcept override { return memory_->shape(); }
  absl::Status status() const override { return link_.status(); }
  int event_fd() const noexcept override { return link_.event_fd(); }
  bool Arm() noexcept override { return link_.Arm(); }
  void Disarm() noexcept override { link_.Disarm(); }

  std::optional<uint32_t> Acquire() noexcept override { return slots_.Acquire(); }

  std::span<std::byte> request(uint32_t slot) noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return memory_->request(slot);
  }

  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    slots_.CheckHeld(slot);
    CKV_CHECK(bytes <= shape().request_bytes_max);
    if (!link_.status().ok()) {
      slots_.Release(slot);
      return link_.status();
    }
    slots_.Post(slot);
    link_.Send(slot, bytes);
    return absl::OkStatus();
  }

  size_t Poll(std::span<Completion> out) noexcept override {
    size_t count = 0;
    RingEntry entry;
    while (count < out.size() && link_.Receive(entry)) {
      switch (slots_.Complete(entry.slot)) {
        case RequesterSlots::Reply::kDeliver:
          out[count++] = {entry.slot, entry.bytes};
          break;
        case RequesterSlots::Reply::kSwallow:
          break;
        case RequesterSlots::Reply::kBogus:
          link_.Break(absl::InvalidArgumentError(
              absl::StrFormat("the peer answered slot %d, which awaits nothing", entry.slot)));
          break;
      }
    }
    return count;
  }

  std::span<const std::byte> reply(uint32_t slot) const noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return memory_->reply(slot);
  }

  void Release(uint32_t slot) noexcept override { slots_.Release(slot); }
  void Abandon(uint32_t slot) noexcept override { slots_.Abandon(slot); }
  uint32_t in_flight() const noexcept override { return slots_.in_flight(); }

 private:
  const FabricKind kind_;
  const std::shared_ptr<const LaneMemory> memory_;
  RingLink link_;
  RequesterSlots slots_;
};

class RingServeLane final : public ServeLane {
 public:
  RingServeLane(FabricKind kind, std::shared_ptr<const LaneMemory> memory, UniqueFd doorbell)
      : kind_(kind),
        memory_(std::move(memory)),
        link_(&memory_->control()->replies, &memory_->control()->requests, shape().slot_count,
              shape().request_bytes_max, std::move(doorbell)),
        slots_(shape().slot_count) {}

  FabricKind kind() const noexcept override { return kind_; }
  const LaneShape& shape() const noexcept override { return memory_->shape(); }
  absl::Status status() const override { return link_.status(); }
  int event_fd() const noexcept override { return link_.event_fd(); }
  bool Arm() noexcept override { return link_.Arm(); }
  void Disarm() noexcept override { link_.Disarm(); }

  size_t Poll(std::span<Arrival> out) noexcept override {
    size_t count = 0;
    RingEntry entry;
    while (count < out.size() && link_.Receive(entry)) {
      if (slots_.Arrive(entry.slot)) {
        out[count++] = {entry.slot, entry.bytes};
      } else {
        link_.Break(absl::InvalidArgumentError(
            absl::StrFormat("the peer posted slot %d before its reply", entry.slot)));
      }
    }
    return count;
  }

  std::span<const std::byte> request(uint32_t slot) const noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return memory_->request(slot);
  }
  std::span<std::byte> reply(uint32_t slot) noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return memory_->reply(slot);
  }

  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    CKV_CHECK(bytes <= shape().reply_bytes_max);
    slots_.Post(slot);
    if (!link_.status().ok()) return link_.status();
    link_.Send(slot, bytes);
    return absl::OkStatus();
  }

 private:
  const FabricKind kind_;
  const std::shared_ptr<const LaneMemory> memory_;
  RingLink link_;
  HolderSlots slots_;
};

}  // namespace

std::unique_ptr<RequestLane> NewRingRequestLane(FabricKind kind,
                                                std::shared_ptr<const LaneMemory> memory,
                                                UniqueFd doorbell) {
  return std::make_unique<RingRequestLane>(kind, std::move(memory), std::move(doorbell));
}

std::unique_ptr<ServeLane> NewRingServeLane(FabricKind kind,
                                            std::shared_ptr<const LaneMemory> memory,
                                            UniqueFd doorbell) {
  return std::make_unique<RingServeLane>(kind, std::move(memory), std::move(doorbell));
}

}  // namespace ckv
