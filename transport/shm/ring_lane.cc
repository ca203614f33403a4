// Both ends of a lane over shared memory. RingConnection has what they share: an outgoing and an
// incoming ring, the doorbell (a socket), and the lane's status. Send: descriptor first, if there
// is one; the entry; then the bell, if the peer sleeps. Receive: takes the next entry of the ring;
// while there is none, now and then looks at the socket, which also shows that the peer is gone.
// Arm announces sleep, and looks once more. A peer may write anything at any time, so every entry
// is copied and checked. A failure is final.

#include "transport/shm/ring_lane.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "transport/slot_ring.h"
#include "transport/slots.h"

namespace ckv {
namespace {

// Empty polls between two looks at the doorbell while spinning. A poll takes some 5 ns and a look
// 300 ns, so looks cost a spinner a fifth of its (idle) time. It finds a dead peer within
// microseconds. A loop over 16 lanes at 1 us per round finds it within 5 ms.
constexpr uint32_t kPeerLookInterval = 256;
// Reads of 64 bytes per look; a peer that floods wakes us needlessly. A read ends at a descriptor,
// so a promised descriptor is found within slot_count + 1 reads.
constexpr uint32_t kDoorbellReadsMax = 16;

// The part that both ends have in common: two rings, the doorbell, the lane's status.
class RingConnection {
 public:
  // `takes_descriptors` is true at the requester's end. The holder's end closes every descriptor
  // unseen.
  RingConnection(RingMemory* out, RingMemory* in, uint32_t slot_count, uint32_t in_bytes_max,
                 UniqueFd doorbell, bool takes_descriptors)
      : writer_(out),
        reader_(in),
        slot_count_(slot_count),
        in_bytes_max_(in_bytes_max),
        takes_descriptors_(takes_descriptors),
        doorbell_(std::move(doorbell)) {
    if (takes_descriptors) passed_.reserve(slot_count);
  }

  const absl::Status& status() const noexcept { return status_; }
  int event_fd() const noexcept { return doorbell_.get(); }

  void Send(uint32_t slot, uint32_t bytes) noexcept {
    if (!writer_.Write(slot, bytes)) return;
    const char bell = 1;
    // A full socket buffer wakes the peer as well, and the next look finds a dead peer.
    (void)send(doorbell_.get(), &bell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Passes a duplicate of `fd` to the peer; call before the entry that flags it is sent.
  //   ResourceExhausted   not sent: the socket is full, or the system's limit of descriptors in
  //                       transfer is reached.
  //   Unavailable         the peer has gone, and with it the lane.
  absl::Status SendDescriptor(uint32_t slot, int fd) noexcept {
    const auto note = static_cast<uint8_t>(slot);
    static_assert(kSlotCountMax <= 256);
    if (SendWithFd(doorbell_.get(), BytesOf(note), fd)) return absl::OkStatus();
    if (errno == EPIPE || errno == ECONNRESET) {
      Break(absl::UnavailableError("the peer has closed its end of the lane"));
      return status_;
    }
    return absl::ResourceExhaustedError(ErrnoText("passing a descriptor with a reply"));
  }

  // Takes the peer's next message, with slot and bytes inside the lane's shape, and its descriptor.
  bool Receive(RingEntry& entry, UniqueFd& descriptor) noexcept {
    if (!status_.ok()) return false;
    RingReader::Look look = reader_.Read(entry);
    if (look == RingReader::Look::kEmpty) {
      if (++empty_polls_ < kPeerLookInterval) return false;
      empty_polls_ = 0;
      const bool peer_is_there = DrainDoorbell(kDoorbellReadsMax);
      if (!status_.ok()) return false;
      // Messages that it sent before it rang, or before it went, still count.
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
    const bool described = takes_descriptors_ && (entry.slot & kRingDescriptorFlag) != 0;
    if (described) entry.slot ^= kRingDescriptorFlag;
    if (entry.slot >= slot_count_ || entry.bytes > in_bytes_max_) {
      Break(absl::InvalidArgumentError(
          absl::StrFormat("the peer sent slot %d of %d, %d bytes of %d", entry.slot, slot_count_,
                          entry.bytes, in_bytes_max_)));
      return false;
    }
    return !described || TakePassed(entry.slot, descriptor);
  }

  bool Arm() noexcept { return status_.ok() && reader_.Arm(); }

  void Disarm() noexcept {
    reader_.Disarm();
    // If the peer has gone and nothing is left in the ring, the next poll reports that.
    (void)DrainDoorbell(kDoorbellReadsMax);
    empty_polls_ = kPeerLookInterval;
  }

  void Break(absl::Status status) noexcept {
    if (!status_.ok()) return;
    status_ = std::move(status);
    // Notifies the peer now, not when the owner destroys this end.
    shutdown(doorbell_.get(), SHUT_RDWR);
  }

 private:
  struct Passed {
    uint8_t slot;
    UniqueFd fd;
  };

  // Takes the bells that rang and the descriptors among them. Returns false if the peer has hung
  // up. A peek is not enough: an unread bell would hide the hang-up behind it.
  bool DrainDoorbell(uint32_t reads_max) noexcept {
    std::byte bells[64];
    for (uint32_t i = 0; i < reads_max; ++i) {
      Received got = ReceiveSome(doorbell_.get(), bells, takes_descriptors_);
      if (got.bytes < 0) return errno == EAGAIN || errno == EINTR;
      if (got.bytes == 0) return false;
      // Truncated: this process is out of descriptors, so the reply has none.
      if (got.fd_count == 0 && !got.cut) continue;
      if (got.fd_count > 1 || passed_.size() == slot_count_) {
        Break(absl::InvalidArgumentError(
            absl::StrFormat("the peer passed %d descriptors at once, %d before them wait; one a "
                            "reply, %d slots",
                            got.fd_count, passed_.size(), slot_count_)));
        return true;
      }
      passed_.push_back({static_cast<uint8_t>(bells[got.bytes - 1]), std::move(got.fd)});
    }
    return true;
  }

  // Takes the descriptor of a flagged reply. It was sent before the entry, so it is here or in the
  // socket.
  bool TakePassed(uint32_t slot, UniqueFd& descriptor) noexcept {
    if (passed_.empty()) (void)DrainDoorbell(slot_count_ + 1);
    if (!status_.ok()) return false;
    if (passed_.empty() || passed_.front().slot != slot) {
      Break(absl::InvalidArgumentError(absl::StrFormat(
          "the peer's reply in slot %d promised a descriptor that it did not pass", slot)));
      return false;
    }
    descriptor = std::move(passed_.front().fd);
    passed_.erase(passed_.begin());
    return true;
  }

  RingWriter writer_;
  RingReader reader_;
  const uint32_t slot_count_;
  const uint32_t in_bytes_max_;
  const bool takes_descriptors_;
  UniqueFd doorbell_;
  uint32_t empty_polls_ = 0;
  absl::Status status_;
  std::vector<Passed> passed_;  // oldest first; at most one per slot
};

class RingRequestLane final : public RequestLane {
 public:
  RingRequestLane(FabricKind kind, std::shared_ptr<LaneMemory> memory, UniqueFd doorbell)
      : kind_(kind),
        memory_(std::move(memory)),
        connection_(&memory_->control()->requests, &memory_->control()->replies, shape().slot_count,
                    shape().reply_bytes_max, std::move(doorbell), true),
        slots_(shape().slot_count),
        descriptors_(shape().slot_count) {}

  FabricKind kind() const noexcept override { return kind_; }
  const LaneShape& shape() const noexcept override { return memory_->shape(); }
  absl::Status status() const override { return connection_.status(); }
  int event_fd() const noexcept override { return connection_.event_fd(); }
  bool Arm() noexcept override { return connection_.Arm(); }
  void Disarm() noexcept override { connection_.Disarm(); }

  std::optional<uint32_t> Acquire() noexcept override {
    AssertOwned();
    return slots_.Acquire();
  }

  std::span<std::byte> request(uint32_t slot) noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return memory_->request(slot);
  }

  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    AssertOwned();
    slots_.CheckHeld(slot);
    CKV_CHECK(bytes <= shape().request_bytes_max);
    if (!connection_.status().ok()) {
      slots_.Release(slot);
      return connection_.status();
    }
    slots_.Post(slot);
    connection_.Send(slot, bytes);
    return absl::OkStatus();
  }

  size_t Poll(std::span<Completion> out) noexcept override {
    AssertOwned();
    size_t count = 0;
    RingEntry entry;
    UniqueFd descriptor;
    while (count < out.size() && connection_.Receive(entry, descriptor)) {
      switch (slots_.Complete(entry.slot)) {
        case RequesterSlots::Reply::kDeliver:
          if (descriptor.valid()) descriptors_[entry.slot] = std::move(descriptor);
          out[count++] = {entry.slot, entry.bytes};
          break;
        case RequesterSlots::Reply::kSwallow:
          descriptor.Reset();
          break;
        case RequesterSlots::Reply::kBogus:
          connection_.Break(absl::InvalidArgumentError(
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

  void Release(uint32_t slot) noexcept override {
    slots_.Release(slot);
    descriptors_[slot].Reset();
  }
  void Abandon(uint32_t slot) noexcept override { slots_.Abandon(slot); }
  uint32_t in_flight() const noexcept override { return slots_.in_flight(); }

  absl::StatusOr<UniqueFd> TakeDescriptor(uint32_t slot) noexcept override {
    slots_.CheckDone(slot);
    if (!descriptors_[slot].valid()) {
      return absl::NotFoundError(absl::StrFormat("slot %d's reply has no descriptor", slot));
    }
    return std::move(descriptors_[slot]);
  }

 private:
  absl::Status DoPinSlots(std::shared_ptr<MemoryPinner> pinner) override {
    if (memory_->type() == RegionType::kPinned) return absl::OkStatus();  // loopback
    return memory_->Pin(std::move(pinner));
  }

  const FabricKind kind_;
  const std::shared_ptr<LaneMemory> memory_;
  RingConnection connection_;
  RequesterSlots slots_;
  std::vector<UniqueFd> descriptors_;  // the descriptors of done slots
};

class RingServeLane final : public ServeLane {
 public:
  RingServeLane(FabricKind kind, std::shared_ptr<const LaneMemory> memory, UniqueFd doorbell)
      : kind_(kind),
        memory_(std::move(memory)),
        connection_(&memory_->control()->replies, &memory_->control()->requests, shape().slot_count,
                    shape().request_bytes_max, std::move(doorbell), false),
        slots_(shape().slot_count) {
    set_slot_type(memory_->type());
  }

  FabricKind kind() const noexcept override { return kind_; }
  const LaneShape& shape() const noexcept override { return memory_->shape(); }
  absl::Status status() const override { return connection_.status(); }
  int event_fd() const noexcept override { return connection_.event_fd(); }
  bool Arm() noexcept override { return connection_.Arm(); }
  void Disarm() noexcept override { connection_.Disarm(); }

  size_t Poll(std::span<Arrival> out) noexcept override {
    AssertOwned();
    size_t count = 0;
    RingEntry entry;
    UniqueFd none;
    while (count < out.size() && connection_.Receive(entry, none)) {
      if (slots_.Arrive(entry.slot)) {
        out[count++] = {entry.slot, entry.bytes};
      } else {
        connection_.Break(absl::InvalidArgumentError(
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
    AssertOwned();
    CKV_CHECK(bytes <= shape().reply_bytes_max);
    slots_.Post(slot);
    if (!connection_.status().ok()) return connection_.status();
    connection_.Send(slot, bytes);
    return absl::OkStatus();
  }

  absl::Status PostWithDescriptor(uint32_t slot, uint32_t bytes, int fd) noexcept override {
    AssertOwned();
    slots_.CheckArrived(slot);
    CKV_CHECK(bytes <= shape().reply_bytes_max && fd >= 0);
    absl::Status passed = connection_.status();
    if (passed.ok()) passed = connection_.SendDescriptor(slot, fd);
    if (!passed.ok() && connection_.status().ok()) return passed;  // the slot is still the caller's
    slots_.Post(slot);
    if (passed.ok()) connection_.Send(slot | kRingDescriptorFlag, bytes);
    return passed;
  }

 private:
  const FabricKind kind_;
  const std::shared_ptr<const LaneMemory> memory_;
  RingConnection connection_;
  HolderSlots slots_;
};

}  // namespace

std::unique_ptr<RequestLane> NewRingRequestLane(FabricKind kind, std::shared_ptr<LaneMemory> memory,
                                                UniqueFd doorbell) {
  return std::make_unique<RingRequestLane>(kind, std::move(memory), std::move(doorbell));
}

std::unique_ptr<ServeLane> NewRingServeLane(FabricKind kind,
                                            std::shared_ptr<const LaneMemory> memory,
                                            UniqueFd doorbell) {
  return std::make_unique<RingServeLane>(kind, std::move(memory), std::move(doorbell));
}

}  // namespace ckv
