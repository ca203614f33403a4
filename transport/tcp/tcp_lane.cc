// The two ends of a tcp lane, each with its own slots. The requester posts a slot's request and
// takes replies; a reply to a request that is not yet sent in full breaks the lane. The holder
// takes requests and posts replies, whose rows the kernel reads where they are stored. SilenceWatch
// judges a peer that is silent. Each end belongs to one thread.

#include "transport/tcp/tcp_lane.h"

#include <sys/epoll.h>

#include <array>
#include <utility>
#include <vector>

#include "proto/base/status.h"
#include "transport/lane_memory.h"
#include "transport/slots.h"
#include "transport/tcp/tcp_connection.h"

namespace ckv {
namespace {

class TcpRequestLane final : public RequestLane {
 public:
  TcpRequestLane(UniqueFd socket, UniqueFd epoll, LaneMemory memory,
                 std::shared_ptr<SilenceWatch> watch)
      : memory_(std::move(memory)),
        connection_(std::move(socket), std::move(epoll), shape().slot_count,
                    shape().reply_bytes_max, std::move(watch)),
        slots_(shape().slot_count),
        landings_(shape().slot_count) {}

  FabricKind kind() const noexcept override { return FabricKind::kTcp; }
  const LaneShape& shape() const noexcept override { return memory_.shape(); }
  absl::Status status() const override { return connection_.status(); }
  int event_fd() const noexcept override { return connection_.event_fd(); }
  bool Arm() noexcept override { return connection_.Arm(); }
  void Disarm() noexcept override {}

  std::optional<uint32_t> Acquire() noexcept override {
    AssertOwned();
    const std::optional<uint32_t> slot = slots_.Acquire();
    if (slot) landings_[*slot] = {};
    return slot;
  }

  std::span<std::byte> request(uint32_t slot) noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return memory_.request(slot);
  }

  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    AssertOwned();
    CKV_RETURN_IF_ERROR(TakePosted(slot, bytes));
    // A failed send ends the lane. The slot stays posted, because its fate is unknown.
    connection_.Send(slot, memory_.request(slot).first(bytes));
    return absl::OkStatus();
  }
  absl::Status PostLater(uint32_t slot, uint32_t bytes) noexcept override {
    AssertOwned();
    CKV_RETURN_IF_ERROR(TakePosted(slot, bytes));
    connection_.SendLater(slot, memory_.request(slot).first(bytes));
    return absl::OkStatus();
  }

  bool Land(uint32_t slot, uint32_t head_bytes, const ScatterList& body) noexcept override {
    slots_.CheckHeld(slot);
    CKV_CHECK(head_bytes <= shape().reply_bytes_max &&
              body.bytes() <= shape().reply_bytes_max - head_bytes);
    landings_[slot] = {.head_bytes = head_bytes, .body = body};
    return true;
  }
  bool landed(uint32_t slot) const noexcept override {
    slots_.CheckDone(slot);
    return landings_[slot].landed;
  }

  size_t Poll(std::span<Completion> out) noexcept override {
    AssertOwned();
    connection_.Flush();
    size_t count = 0;
    FrameHeader frame;
    // A reply to a request that is not yet sent in full would free a buffer that the kernel still
    // reads.
    const auto admit = [this](uint32_t slot) {
      return slots_.awaits(slot) && !connection_.sending(slot);
    };
    const auto buffer = [this](const FrameHeader& coming) { return PlaceOf(coming); };
    while (count < out.size() && connection_.Receive(admit, buffer, frame)) {
      if (slots_.Complete(frame.slot) == RequesterSlots::Reply::kDeliver) {
        out[count++] = {frame.slot, frame.bytes};
      }
    }
    return count;
  }

  std::span<const std::byte> reply(uint32_t slot) const noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return memory_.reply(slot);
  }

  void Release(uint32_t slot) noexcept override { slots_.Release(slot); }
  void Abandon(uint32_t slot) noexcept override {
    slots_.Abandon(slot);
    landings_[slot] = {};
    connection_.Divert(slot, memory_.reply(slot));
  }
  uint32_t in_flight() const noexcept override { return slots_.in_flight(); }

 private:
  // The landing that Land requested.
  struct Wish {
    uint32_t head_bytes = 0;
    ScatterList body;
    bool landed = false;
  };

  absl::Status DoPinSlots(std::shared_ptr<MemoryPinner> pinner) override {
    return memory_.Pin(std::move(pinner));
  }

  absl::Status TakePosted(uint32_t slot, uint32_t bytes) noexcept {
    slots_.CheckHeld(slot);
    CKV_CHECK(bytes <= shape().request_bytes_max);
    if (connection_.status().ok()) {
      slots_.Post(slot);
    } else {
      slots_.Release(slot);
    }
    return connection_.status();
  }

  TcpConnection::Landing PlaceOf(const FrameHeader& frame) noexcept {
    const std::span<std::byte> reply = memory_.reply(frame.slot);
    Wish& wish = landings_[frame.slot];
    wish.landed = !wish.body.empty() && frame.bytes == wish.head_bytes + wish.body.bytes();
    if (!wish.landed) return {reply.first(frame.bytes), {}};
    return {reply.first(wish.head_bytes), wish.body};
  }

  LaneMemory memory_;
  TcpConnection connection_;
  RequesterSlots slots_;
  std::vector<Wish> landings_;
};

class TcpServeLane final : public ServeLane {
 public:
  TcpServeLane(UniqueFd socket, UniqueFd epoll, LaneMemory memory,
               std::shared_ptr<SilenceWatch> watch)
      : memory_(std::move(memory)),
        connection_(std::move(socket), std::move(epoll), shape().slot_count,
                    shape().request_bytes_max, std::move(watch)),
        slots_(shape().slot_count) {
    set_slot_type(memory_.type());
  }

  FabricKind kind() const noexcept override { return FabricKind::kTcp; }
  const LaneShape& shape() const noexcept override { return memory_.shape(); }
  absl::Status status() const override { return connection_.status(); }
  int event_fd() const noexcept override { return connection_.event_fd(); }
  bool Arm() noexcept override { return connection_.Arm(); }
  void Disarm() noexcept override {}

  size_t Poll(std::span<Arrival> out) noexcept override {
    AssertOwned();
    connection_.Flush();
    size_t count = 0;
    FrameHeader frame;
    const auto admit = [this](uint32_t slot) {
      return slots_.idle(slot) && !connection_.sending(slot);
    };
    const auto buffer = [this](const FrameHeader& coming) -> TcpConnection::Landing {
      return {memory_.request(coming.slot).first(coming.bytes), {}};
    };
    while (count < out.size() && connection_.Receive(admit, buffer, frame)) {
      CKV_CHECK(slots_.Arrive(frame.slot));  // admitted, and nothing has happened since
      out[count++] = {frame.slot, frame.bytes};
    }
    return count;
  }

  std::span<const std::byte> request(uint32_t slot) const noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return memory_.request(slot);
  }
  std::span<std::byte> reply(uint32_t slot) noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return memory_.reply(slot);
  }

  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    AssertOwned();
    CKV_CHECK(bytes <= shape().reply_bytes_max);
    slots_.Post(slot);
    gathered_[slot] = false;
    if (!connection_.status().ok()) return connection_.status();
    connection_.Send(slot, memory_.reply(slot).first(bytes));
    return connection_.status();
  }

  // The kernel reads the runs in place.
  absl::Status PostGather(uint32_t slot, uint32_t head_bytes,
                          std::span<const std::span<const std::byte>> runs,
                          RegionType type) noexcept override {
    AssertOwned();
    if (type == RegionType::kDmabuf) return NoDmabuf();
    CKV_CHECK(runs.size() <= kGatherRunCountMax && head_bytes <= shape().reply_bytes_max);
    size_t left = shape().reply_bytes_max - head_bytes;
    for (const std::span<const std::byte> run : runs) {
      CKV_CHECK(run.size() <= left);
      left -= run.size();
    }
    slots_.Post(slot);
    gathered_[slot] = true;
    if (!connection_.status().ok()) return connection_.status();
    connection_.Send(slot, memory_.reply(slot).first(head_bytes), runs);
    return connection_.status();
  }
  bool gathering(uint32_t slot) const noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return gathered_[slot] && connection_.sending(slot) && connection_.status().ok();
  }

 private:
  const LaneMemory memory_;
  TcpConnection connection_;
  HolderSlots slots_;
  std::array<bool, kSlotCountMax> gathered_{};  // the slot's last reply had runs
};

absl::StatusOr<UniqueFd> NewEpoll() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus("epoll_create1");
  return epoll;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RequestLane>> NewTcpRequestLane(
    UniqueFd socket, const LaneShape& shape, std::shared_ptr<SilenceWatch> watch) {
  CKV_ASSIGN_OR_RETURN(UniqueFd epoll, NewEpoll());
  CKV_ASSIGN_OR_RETURN(LaneMemory memory, LaneMemory::CreatePrivate(shape));
  return std::make_unique<TcpRequestLane>(std::move(socket), std::move(epoll), std::move(memory),
                                          std::move(watch));
}

absl::StatusOr<std::unique_ptr<ServeLane>> NewTcpServeLane(UniqueFd socket, LaneMemory memory,
                                                           std::shared_ptr<SilenceWatch> watch) {
  CKV_ASSIGN_OR_RETURN(UniqueFd epoll, NewEpoll());
  return std::make_unique<TcpServeLane>(std::move(socket), std::move(epoll), std::move(memory),
                                        std::move(watch));
}

}  // namespace ckv
