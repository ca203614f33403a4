// The two ends of a verbs lane. The requester sends a slot's request, and its device receives
// replies in the slot or writes them where they are wanted. The holder receives requests in its
// buffers, and sends replies from the slot or from the store: spans list the places, and chain_ is
// one work request for each segment. Parts of the store that are not registered yet are copied, and
// registered on another thread for the next reply. VerbsEnd has the memory and queues; its
// destruction may wait for the peer, so it can be left to VerbsSide.

#include "transport/verbs/verbs_lane.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"
#include "transport/slots.h"

namespace ckv {
namespace {

// Entries for a head, the runs, and a few runs that cross the bounds of the store's segments.
constexpr uint32_t kScatterMax = kGatherRunCountMax + 4;

uint32_t WorkRequestsOf(uint32_t bytes, uint32_t segment_bytes) {
  return std::max(1u, (bytes + segment_bytes - 1) / segment_bytes);
}

class VerbsRequestLane final : public RequestLane {
 public:
  VerbsRequestLane(std::unique_ptr<VerbsEnd> end, uint32_t segment_bytes, VerbsSide side)
      : side_(std::move(side)),
        end_(std::move(end)),
        connection_(*end_->connection),
        segment_bytes_(segment_bytes),
        slots_(end_->shape.slot_count) {}
  ~VerbsRequestLane() override {
    connection_.Leave();
    side_.Retire(std::move(end_));
  }

  FabricKind kind() const noexcept override { return FabricKind::kVerbs; }
  const LaneShape& shape() const noexcept override { return end_->shape; }
  absl::Status status() const override { return connection_.status(); }
  int event_fd() const noexcept override { return connection_.event_fd(); }
  bool Arm() noexcept override {
    const VerbsMessage* front = connection_.Front();
    return connection_.Arm(front != nullptr && Blocked(*front));
  }
  void Disarm() noexcept override { connection_.Disarm(); }

  std::optional<uint32_t> Acquire() noexcept override {
    AssertOwned();
    return slots_.Acquire();
  }

  std::span<std::byte> request(uint32_t slot) noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return end_->memory.request(slot);
  }

  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    AssertOwned();
    slots_.CheckHeld(slot);
    CKV_CHECK(bytes <= shape().request_bytes_max);
    if (!connection_.failure().ok()) {
      slots_.Release(slot);
      return connection_.failure();
    }
    slots_.Post(slot);
    ibv_sge sge = {reinterpret_cast<uint64_t>(end_->memory.request(slot).data()), bytes,
                   end_->requests->local_key()};
    ibv_send_wr request = {};
    request.sg_list = &sge;
    request.num_sge = bytes > 0 ? 1 : 0;
    request.opcode = IBV_WR_SEND_WITH_IMM;
    request.imm_data = htonl(EncodeImmediate(slot, 0));
    sends_[slot] = connection_.Send(&request, &request, 1, connection_.inlines(bytes));
    // A failed send ends the lane. The slot stays posted, because its fate is unknown.
    return absl::OkStatus();
  }

  size_t Poll(std::span<Completion> out) noexcept override {
    AssertOwned();
    size_t count = 0;
    while (count < out.size()) {
      const VerbsMessage* front = connection_.Front();
      if (front == nullptr) break;
      const uint64_t bytes =
          uint64_t{front->immediate.segment_count} * segment_bytes_ + front->bytes;
      const uint32_t slot = front->immediate.slot;
      if (!front->write || bytes > shape().reply_bytes_max || !slots_.awaits(slot)) {
        connection_.Break(absl::InvalidArgumentError(absl::StrFormat(
            "the peer answered slot %d, which awaits nothing or not that: %d bytes", slot, bytes)));
        break;
      }
      // A reply may be here before our own request has completed. Until then the device may read
      // the request again.
      if (Blocked(*front)) break;
      connection_.Pop();
      if (slots_.Complete(slot) == RequesterSlots::Reply::kDeliver) {
        out[count++] = {slot, static_cast<uint32_t>(bytes)};
      }
    }
    if (count == 0) connection_.NoteEmpty();
    return count;
  }

  std::span<const std::byte> reply(uint32_t slot) const noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return end_->memory.reply(slot);
  }

  void Release(uint32_t slot) noexcept override { slots_.Release(slot); }
  void Abandon(uint32_t slot) noexcept override { slots_.Abandon(slot); }
  uint32_t in_flight() const noexcept override { return slots_.in_flight(); }

 private:
  absl::Status DoPinSlots(std::shared_ptr<MemoryPinner> pinner) override {
    return end_->memory.Pin(std::move(pinner));
  }

  bool Blocked(const VerbsMessage& message) const noexcept {
    return connection_.reading(sends_[message.immediate.slot]);
  }

  const VerbsSide side_;
  std::unique_ptr<VerbsEnd> end_;
  VerbsConnection& connection_;
  const uint32_t segment_bytes_;
  RequesterSlots slots_;
  std::array<uint64_t, kSlotCountMax> sends_{};  // the send of each slot's last request
};

class VerbsServeLane final : public ServeLane {
 public:
  VerbsServeLane(std::unique_ptr<VerbsEnd> end, const VerbsEndFrame& peer,
                 std::span<const MemoryRegion> gather_regions, VerbsSide side)
      : side_(std::move(side)),
        end_(std::move(end)),
        connection_(*end_->connection),
        peer_(peer),
        segment_bytes_(end_->domain->device()->segment_bytes()),
        scatter_max_(std::min<uint32_t>(
            kScatterMax, static_cast<uint32_t>(end_->domain->device()->limits().max_sge))),
        slots_(end_->shape.slot_count) {
    end_->gather.emplace(&*end_->domain, gather_regions);
    set_slot_type(end_->memory.type());
    const size_t requests = WorkRequestsOf(shape().reply_bytes_max, segment_bytes_);
    chain_.resize(requests);
    spans_.reserve(2 * kScatterMax);
    scatter_.reserve(requests * scatter_max_);
  }
  ~VerbsServeLane() override {
    connection_.Leave();
    // The store is the caller's again, and other rows may be put there. So nothing may be sent, or
    // sent once more, from it. All other sends get their time.
    if (connection_.reading(last_gather_)) connection_.Stop();
    side_.Retire(std::move(end_));
  }

  FabricKind kind() const noexcept override { return FabricKind::kVerbs; }
  const LaneShape& shape() const noexcept override { return end_->shape; }
  absl::Status status() const override { return connection_.status(); }
  int event_fd() const noexcept override { return connection_.event_fd(); }
  bool Arm() noexcept override {
    const VerbsMessage* front = connection_.Front();
    return connection_.Arm(front != nullptr && Blocked(*front));
  }
  void Disarm() noexcept override { connection_.Disarm(); }

  size_t Poll(std::span<Arrival> out) noexcept override {
    AssertOwned();
    size_t count = 0;
    while (count < out.size()) {
      const VerbsMessage* front = connection_.Front();
      if (front == nullptr) break;
      const uint32_t slot = front->immediate.slot;
      if (front->immediate.segment_count != 0 || front->bytes > shape().request_bytes_max ||
          !slots_.idle(slot)) {
        connection_.Break(absl::InvalidArgumentError(
            absl::StrFormat("the peer posted slot %d of %d out of its turn, %d bytes of %d", slot,
                            shape().slot_count, front->bytes, shape().request_bytes_max)));
        break;
      }
      // The peer may have the slot's last reply before we know it. Until then the device may read
      // the reply again.
      if (Blocked(*front)) break;
      CKV_CHECK(slots_.Arrive(slot));
      buffers_[slot] = front->buffer;
      out[count++] = {slot, front->bytes};
      connection_.Pop();
    }
    if (count == 0) connection_.NoteEmpty();
    return count;
  }

  std::span<const std::byte> request(uint32_t slot) const noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return end_->memory.request(buffers_[slot]);
  }
  std::span<std::byte> reply(uint32_t slot) noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return end_->memory.reply(slot);
  }

  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    AssertOwned();
    return PostGather(slot, bytes, {}, RegionType::kHost);
  }

  absl::Status PostGather(uint32_t slot, uint32_t head_bytes,
                          std::span<const std::span<const std::byte>> runs,
                          RegionType type) noexcept override {
    AssertOwned();
    CKV_CHECK(runs.size() <= kGatherRunCountMax && head_bytes <= shape().reply_bytes_max);
    if (type == RegionType::kDmabuf && connection_.failure().ok()) {
      if (!Gathers(slot, head_bytes, runs)) return NoDmabuf();
    }
    slots_.Post(slot);
    gathers_[slot] = 0;
    // The request's buffer serves the next message, which the peer sends after this reply.
    connection_.Repost(buffers_[slot]);
    if (!connection_.failure().ok()) return connection_.failure();
    bool gathers = false;
    const uint32_t bytes = ListSpans(slot, head_bytes, runs, gathers);
    // If too many jobs wait, the next reply requests them again.
    if (end_->gather->TakeWants()) (void)side_.Ask(end_.get());
    size_t requests = Cut(slot, bytes);
    if (requests == 0) {  // too many spans for a work request: copy them all
      gathers = false;
      CopySpans(slot, head_bytes, runs);
      requests = Cut(slot, bytes);
    }
    const bool copied = requests == 1 && !gathers && connection_.inlines(bytes);
    sends_[slot] = connection_.Send(chain_.data(), &chain_[requests - 1],
                                    static_cast<uint32_t>(requests), copied);
    if (gathers) last_gather_ = gathers_[slot] = sends_[slot];
    return absl::OkStatus();
  }

  bool gathering(uint32_t slot) const noexcept override {
    CKV_CHECK(slot < shape().slot_count);
    return connection_.reading(gathers_[slot]);
  }

 private:
  bool Blocked(const VerbsMessage& message) const noexcept {
    return connection_.reading(sends_[message.immediate.slot]);
  }

  ibv_sge InSlot(uint32_t slot, size_t offset, size_t bytes) const noexcept {
    return {reinterpret_cast<uint64_t>(end_->memory.reply(slot).data() + offset),
            static_cast<uint32_t>(bytes), end_->replies->local_key()};
  }

  // Lists the places of the reply's bytes, in order: in the slot, in the store, or copied into the
  // slot at their own offset. Returns how many there are.
  uint32_t ListSpans(uint32_t slot, uint32_t head_bytes,
                     std::span<const std::span<const std::byte>> runs, bool& gathers) noexcept {
    spans_.clear();
    if (head_bytes > 0) spans_.push_back(InSlot(slot, 0, head_bytes));
    size_t bytes = head_bytes;
    for (const std::span<const std::byte> run : runs) {
      CKV_CHECK(run.size() <= shape().reply_bytes_max - bytes);
      if (run.empty()) continue;
      if (end_->gather->Append(run, spans_)) {
        gathers = true;
      } else {
        std::memcpy(end_->memory.reply(slot).data() + bytes, run.data(), run.size());
        spans_.push_back(InSlot(slot, bytes, run.size()));
      }
      bytes += run.size();
    }
    return static_cast<uint32_t>(bytes);
  }

  // Returns true if all runs can be sent in place. If not, requests the registrations that they
  // lack.
  bool Gathers(uint32_t slot, uint32_t head_bytes,
               std::span<const std::span<const std::byte>> runs) noexcept {
    spans_.clear();
    if (head_bytes > 0) spans_.push_back(InSlot(slot, 0, head_bytes));
    size_t bytes = head_bytes;
    bool all = true;
    for (const std::span<const std::byte> run : runs) {
      CKV_CHECK(run.size() <= shape().reply_bytes_max - bytes);
      if (!run.empty() && !end_->gather->Append(run, spans_)) all = false;
      bytes += run.size();
    }
    if (end_->gather->TakeWants()) (void)side_.Ask(end_.get());
    return all && Cut(slot, static_cast<uint32_t>(bytes)) > 0;
  }

  void CopySpans(uint32_t slot, uint32_t head_bytes,
                 std::span<const std::span<const std::byte>> runs) noexcept {
    size_t bytes = head_bytes;
    for (const std::span<const std::byte> run : runs) {
      if (!run.empty()) {
        std::memcpy(end_->memory.reply(slot).data() + bytes, run.data(), run.size());
      }
      bytes += run.size();
    }
    spans_.clear();
    if (bytes > 0) spans_.push_back(InSlot(slot, 0, bytes));
  }

  // Builds chain_ from spans_: one work request per segment, the last with the immediate. Returns
  // how many, or 0 if one would need more than scatter_max_ entries.
  size_t Cut(uint32_t slot, uint32_t bytes) noexcept {
    const uint32_t count = WorkRequestsOf(bytes, segment_bytes_);
    const uint64_t landing = peer_.landing + uint64_t{slot} * peer_.reply_stride;
    scatter_.clear();
    size_t span = 0;
    uint32_t taken = 0;  // bytes of spans_[span] that are in the chain
    for (uint32_t i = 0; i < count; ++i) {
      ibv_send_wr& request = chain_[i] = {};
      request.sg_list = scatter_.data() + scatter_.size();
      request.opcode = i + 1 < count ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM;
      request.next = i + 1 < count ? &chain_[i + 1] : nullptr;
      request.imm_data = htonl(EncodeImmediate(slot, count - 1));
      request.wr.rdma = {landing + uint64_t{i} * segment_bytes_, peer_.landing_key};
      uint32_t left = std::min(segment_bytes_, bytes - i * segment_bytes_);
      while (left > 0) {
        if (request.num_sge == static_cast<int>(scatter_max_)) return 0;
        const ibv_sge& from = spans_[span];
        const uint32_t part = std::min(left, from.length - taken);
        scatter_.push_back({from.addr + taken, part, from.lkey});
        ++request.num_sge;
        left -= part;
        taken += part;
        if (taken == from.length) ++span, taken = 0;
      }
    }
    return count;
  }

  const VerbsSide side_;
  std::unique_ptr<VerbsEnd> end_;
  VerbsConnection& connection_;
  const VerbsEndFrame peer_;
  const uint32_t segment_bytes_;
  const uint32_t scatter_max_;
  HolderSlots slots_;
  std::array<uint32_t, kSlotCountMax> buffers_{};  // the receive that got each slot's request
  std::array<uint64_t, kSlotCountMax> sends_{};    // the send of each slot's last reply
  std::array<uint64_t, kSlotCountMax> gathers_{};  // the same, if it sent from the store
  uint64_t last_gather_ = 0;                       // the last one of all slots
  // Working memory for the reply that is being posted; reserved once.
  std::vector<ibv_sge> spans_, scatter_;
  std::vector<ibv_send_wr> chain_;
};

// Makes the parts that both ends have; `requests` is the number of request buffers.
absl::StatusOr<std::unique_ptr<VerbsEnd>> MakeEnd(std::shared_ptr<VerbsDevice> device,
                                                  const LaneShape& shape, uint32_t requests,
                                                  VerbsAccount account) {
  if (shape.request_bytes_max > device->message_bytes_max()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("requests of %d bytes: the device sends %d at once",
                        shape.request_bytes_max, device->message_bytes_max()));
  }
  CKV_RETURN_IF_ERROR(device->CheckPort());
  CKV_ASSIGN_OR_RETURN(
      LaneMemory memory,
      LaneMemory::CreatePrivate({requests, shape.request_bytes_max, shape.reply_bytes_max}));
  auto end = std::make_unique<VerbsEnd>(std::move(memory), shape);
  CKV_ASSIGN_OR_RETURN(VerbsDomain domain,
                       VerbsDomain::Create(std::move(device), std::move(account)));
  end->domain.emplace(std::move(domain));
  return end;
}

// Returns the `count` buffers of `stride` bytes from `first` on.
absl::StatusOr<VerbsRegion> RegisterBuffers(const VerbsDomain& domain, std::span<std::byte> first,
                                            size_t stride, uint32_t count, VerbsAccess access) {
  return VerbsRegion::Register(domain, std::span<const std::byte>(first.data(), stride * count),
                               access);
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsEnd>> VerbsEnd::ForRequester(
    std::shared_ptr<VerbsDevice> device, Clock* clock, const LaneShape& shape) {
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<VerbsEnd> end,
                       MakeEnd(std::move(device), shape, shape.slot_count, std::nullopt));
  const SlotLayout layout = LayOutSlots(shape, kControlBytes);
  const VerbsDomain& domain = *end->domain;
  const bool windows = domain.device()->windows();
  CKV_ASSIGN_OR_RETURN(VerbsRegion requests,
                       RegisterBuffers(domain, end->memory.request(0), layout.request_stride,
                                       shape.slot_count, VerbsAccess::kSend));
  end->requests.emplace(std::move(requests));
  CKV_ASSIGN_OR_RETURN(
      VerbsRegion replies,
      RegisterBuffers(domain, end->memory.reply(0), layout.reply_stride, shape.slot_count,
                      windows ? VerbsAccess::kWindow : VerbsAccess::kRemoteWrite));
  end->replies.emplace(std::move(replies));
  end->landing_key = end->replies->get()->rkey;
  CKV_ASSIGN_OR_RETURN(end->connection, VerbsConnection::Create(
                                            &domain, clock,
                                            {.receive_count = shape.slot_count + kControlReceives,
                                             .send_count = shape.slot_count,
                                             .sge_count = 1,
                                             .requester = true}));
  CKV_RETURN_IF_ERROR(end->connection->PostReceives(nullptr, 0, 0));
  if (windows) {
    // The window is made after the queue pair. The kernel frees a killed process's objects latest
    // first, and a soft-RoCE queue pair is not freed while a window is bound to it.
    end->window = ibv_alloc_mw(domain.get(), IBV_MW_TYPE_2);
    if (end->window == nullptr) return ErrnoStatus("ibv_alloc_mw");
    // The low byte is ours to choose, and must change.
    const auto chosen = static_cast<uint32_t>(1 + RandomWord() % 255);
    end->landing_key = end->window->rkey ^ chosen;
  }
  return end;
}

absl::StatusOr<std::unique_ptr<VerbsEnd>> VerbsEnd::ForHolder(
    std::shared_ptr<VerbsDevice> device, Clock* clock, const LaneShape& shape, VerbsAccount account,
    std::shared_ptr<MemoryPinner> pinner) {
  const uint32_t receives = shape.slot_count + kControlReceives;
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<VerbsEnd> end,
                       MakeEnd(std::move(device), shape, receives, std::move(account)));
  CKV_RETURN_IF_ERROR(end->memory.Pin(std::move(pinner)));
  const SlotLayout layout = LayOutSlots(shape, kControlBytes);
  const VerbsDomain& domain = *end->domain;
  CKV_ASSIGN_OR_RETURN(VerbsRegion requests,
                       RegisterBuffers(domain, end->memory.request(0), layout.request_stride,
                                       receives, VerbsAccess::kReceive));
  end->requests.emplace(std::move(requests));
  CKV_ASSIGN_OR_RETURN(VerbsRegion replies,
                       RegisterBuffers(domain, end->memory.reply(0), layout.reply_stride,
                                       shape.slot_count, VerbsAccess::kSend));
  end->replies.emplace(std::move(replies));
  const uint32_t scatter_max =
      std::min<uint32_t>(kScatterMax, static_cast<uint32_t>(domain.device()->limits().max_sge));
  const uint32_t requests_each =
      WorkRequestsOf(shape.reply_bytes_max, domain.device()->segment_bytes());
  CKV_ASSIGN_OR_RETURN(end->connection,
                       VerbsConnection::Create(&domain, clock,
                                               {.receive_count = receives,
                                                .send_count = shape.slot_count * requests_each,
                                                .sge_count = scatter_max}));
  CKV_RETURN_IF_ERROR(end->connection->PostReceives(end->memory.request(0).data(),
                                                    static_cast<uint32_t>(layout.request_stride),
                                                    end->requests->local_key()));
  return end;
}

VerbsEnd::~VerbsEnd() {
  if (window != nullptr) ibv_dealloc_mw(window);
}

void VerbsEnd::Run() noexcept { gather->RegisterWanted(); }

VerbsEndFrame VerbsEnd::Describe() const {
  VerbsEndFrame frame;
  connection->Describe(frame);
  frame.slot_count = shape.slot_count;
  frame.request_bytes_max = shape.request_bytes_max;
  frame.reply_bytes_max = shape.reply_bytes_max;
  return frame;
}

std::unique_ptr<RequestLane> NewVerbsRequestLane(std::unique_ptr<VerbsEnd> end,
                                                 uint32_t segment_bytes, VerbsSide side) {
  return std::make_unique<VerbsRequestLane>(std::move(end), segment_bytes, std::move(side));
}

std::unique_ptr<ServeLane> NewVerbsServeLane(std::unique_ptr<VerbsEnd> end,
                                             const VerbsEndFrame& peer,
                                             std::span<const MemoryRegion> gather_regions,
                                             VerbsSide side) {
  return std::make_unique<VerbsServeLane>(std::move(end), peer, gather_regions, std::move(side));
}

}  // namespace ckv
