#include "tests/sim/sim_lane.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/wire.h"

namespace ckv::sim {

void TakeDown(Pair& pair, std::string_view why) {
  const absl::Status status = absl::UnavailableError(std::string(why));
  if (pair.requester_status.ok()) {
    pair.requester_status = status;
    pair.requester_event.Set();
  }
  if (pair.holder_status.ok()) {
    pair.holder_status = status;
    pair.holder_event.Set();
  }
}

namespace {

// The bytes that a fault changes are those of the header, whose checksum finds them: below a body,
// tcp and verbs have checksums of their own.
void Damage(std::vector<std::byte>& bytes, uint64_t salt) {
  if (bytes.empty()) return;
  const size_t at = salt % std::min<size_t>(bytes.size(), sizeof(ReplyHeader));
  bytes[at] ^= static_cast<std::byte>(1u << (salt >> 32 & 7));
}

// A frame was lost because its link is blocked.
void LookAgain(Network* network, std::shared_ptr<Pair> pair, uint32_t from, uint32_t to) {
  Sim().At(Sim().now() + kSilence, [network, pair = std::move(pair), from, to] {
    if (network->blocked(from, to)) TakeDown(*pair, "nothing was heard for 3 s");
  });
}

class SimRequestLane final : public RequestLane {
 public:
  SimRequestLane(std::shared_ptr<LaneWorld> world, std::shared_ptr<Pair> pair)
      : world_(std::move(world)), pair_(std::move(pair)) {}
  ~SimRequestLane() override {
    pair_->requester_gone = true;
    Sim().At(Sim().now() + 50 * kUs, [pair = pair_] {
      if (!pair->holder_status.ok()) return;
      pair->holder_status = absl::UnavailableError("the requester has gone");
      pair->holder_event.Set();
    });
  }
  FabricKind kind() const noexcept override { return pair_->kind; }
  const LaneShape& shape() const noexcept override { return pair_->shape; }
  absl::Status status() const override { return pair_->requester_status; }
  int event_fd() const noexcept override { return pair_->requester_event.fd(); }
  bool Arm() noexcept override {
    pair_->requester_event.Clear();
    return pair_->completed.empty() && pair_->requester_status.ok();
  }
  void Disarm() noexcept override { pair_->requester_event.Clear(); }
  std::optional<uint32_t> Acquire() noexcept override {
    for (uint32_t i = 0; i < pair_->shape.slot_count; ++i) {
      Slot& slot = *pair_->slots[i];
      if (slot.state != SlotState::kFree) continue;
      slot.state = SlotState::kTaken;
      return i;
    }
    return std::nullopt;
  }
  std::span<std::byte> request(uint32_t slot) noexcept override {
    return pair_->slots[slot]->sent.span(pair_->shape.request_bytes_max);
  }
  absl::Status Post(uint32_t index, uint32_t bytes) noexcept override;
  size_t Poll(std::span<Completion> out) noexcept override {
    size_t count = 0;
    while (count < out.size() && !pair_->completed.empty()) {
      out[count++] = pair_->completed.front();
      pair_->completed.pop_front();
    }
    return count;
  }
  std::span<const std::byte> reply(uint32_t slot) const noexcept override {
    return pair_->slots[slot]->answer.span(pair_->shape.reply_bytes_max);
  }
  void Release(uint32_t index) noexcept override {
    Slot& slot = *pair_->slots[index];
    CKV_CHECK(slot.state == SlotState::kDone || slot.state == SlotState::kTaken);
    slot.state = SlotState::kFree;
    slot.passed = {};
  }
  absl::StatusOr<UniqueFd> TakeDescriptor(uint32_t index) noexcept override {
    if (pair_->kind != FabricKind::kShm) return RequestLane::TakeDescriptor(index);
    UniqueFd& passed = pair_->slots[index]->passed;
    if (passed.get() < 0) return absl::NotFoundError("no descriptor arrived");
    return std::move(passed);
  }
  void Abandon(uint32_t index) noexcept override {
    Slot& slot = *pair_->slots[index];
    CKV_CHECK(slot.state == SlotState::kPosted || slot.state == SlotState::kDone);
    if (slot.state == SlotState::kDone || slot.lost) {
      if (slot.state == SlotState::kPosted) --pair_->in_flight;
      slot.state = SlotState::kFree;
      slot.passed = {};
    } else {
      slot.state = SlotState::kAbandoned;
    }
  }
  uint32_t in_flight() const noexcept override { return pair_->in_flight; }

 private:
  const std::shared_ptr<LaneWorld> world_;
  const std::shared_ptr<Pair> pair_;
};

void ArriveAtHolder(Pair& pair, uint32_t index, uint64_t post, std::span<const std::byte> bytes) {
  Slot& slot = *pair.slots[index];
  if (!pair.holder_status.ok() || pair.holder_gone || slot.is_holders) return;
  slot.is_holders = true;
  slot.asked_post = post;
  slot.asked_bytes = static_cast<uint32_t>(bytes.size());
  std::memcpy(slot.asked.span(bytes.size()).data(), bytes.data(), bytes.size());
  pair.arrived.push_back({index, slot.asked_bytes});
  pair.holder_event.Set();
}

absl::Status SimRequestLane::Post(uint32_t index, uint32_t bytes) noexcept {
  Slot& slot = *pair_->slots[index];
  CKV_CHECK(slot.state == SlotState::kTaken && bytes <= pair_->shape.request_bytes_max);
  if (!pair_->requester_status.ok()) {
    slot.state = SlotState::kFree;
    return pair_->requester_status;
  }
  slot.state = SlotState::kPosted;
  slot.post = ++pair_->post_count;
  slot.lost = false;
  ++pair_->in_flight;
  const uint32_t from = pair_->requester->node, to = pair_->holder->node;
  const Fate fate = world_->network.Send(from, to, /*is_frame=*/true);
  if (fate.breaks) {
    TakeDown(*pair_, "the connection broke");
    return absl::OkStatus();
  }
  if (fate.lost) {
    slot.lost = true;
    if (world_->network.blocked(from, to)) LookAgain(&world_->network, pair_, from, to);
    return absl::OkStatus();
  }
  const auto sent = request(index).first(bytes);
  std::vector<std::byte> copy(sent.begin(), sent.end());
  if (fate.corrupted) Damage(copy, fate.salt);
  Sim().At(fate.arrives, [pair = pair_, index, post = slot.post, copy = std::move(copy)] {
    ArriveAtHolder(*pair, index, post, copy);
  });
  return absl::OkStatus();
}

// `passed` is the descriptor that came with the reply, or null.
void ArriveAtRequester(Pair& pair, uint32_t index, uint64_t post, std::span<const std::byte> bytes,
                       bool is_again, UniqueFd* passed) {
  Slot& slot = *pair.slots[index];
  if (!pair.requester_status.ok() || pair.requester_gone) return;
  const Completion done = {index, static_cast<uint32_t>(bytes.size())};
  if (is_again) {
    // A slot that was posted again shows the older bytes until its own reply comes.
    if (slot.state != SlotState::kPosted && slot.state != SlotState::kDone) return;
    if (slot.state == SlotState::kPosted) {
      std::memcpy(slot.answer.span(bytes.size()).data(), bytes.data(), bytes.size());
    }
    pair.completed.push_back(done);
    pair.requester_event.Set();
    return;
  }
  if (slot.post != post) return;
  if (slot.state == SlotState::kAbandoned) {
    slot.state = SlotState::kFree;
    --pair.in_flight;
    return;
  }
  if (slot.state != SlotState::kPosted) return;
  std::memcpy(slot.answer.span(bytes.size()).data(), bytes.data(), bytes.size());
  slot.state = SlotState::kDone;
  if (passed != nullptr) slot.passed = std::move(*passed);
  --pair.in_flight;
  pair.completed.push_back(done);
  pair.requester_event.Set();
}

class SimServeLane final : public ServeLane {
 public:
  SimServeLane(std::shared_ptr<LaneWorld> world, std::shared_ptr<Pair> pair)
      : world_(std::move(world)), pair_(std::move(pair)) {}
  ~SimServeLane() override {
    pair_->holder_gone = true;
    Sim().At(Sim().now() + 50 * kUs, [pair = pair_] {
      if (!pair->requester_status.ok()) return;
      pair->requester_status = absl::UnavailableError("the holder has gone");
      pair->requester_event.Set();
    });
  }
  FabricKind kind() const noexcept override { return pair_->kind; }
  const LaneShape& shape() const noexcept override { return pair_->shape; }
  absl::Status status() const override { return pair_->holder_status; }
  int event_fd() const noexcept override { return pair_->holder_event.fd(); }
  bool Arm() noexcept override {
    pair_->holder_event.Clear();
    return pair_->arrived.empty() && pair_->holder_status.ok();
  }
  void Disarm() noexcept override { pair_->holder_event.Clear(); }
  size_t Poll(std::span<Arrival> out) noexcept override {
    size_t count = 0;
    while (count < out.size() && !pair_->arrived.empty()) {
      out[count++] = pair_->arrived.front();
      pair_->arrived.pop_front();
    }
    return count;
  }
  std::span<const std::byte> request(uint32_t slot) const noexcept override {
    return pair_->slots[slot]->asked.span(pair_->shape.request_bytes_max);
  }
  std::span<std::byte> reply(uint32_t slot) noexcept override {
    return pair_->slots[slot]->reply.span(pair_->shape.reply_bytes_max);
  }
  absl::Status Post(uint32_t index, uint32_t bytes) noexcept override {
    return Post(index, bytes, nullptr);
  }
  absl::Status PostWithDescriptor(uint32_t index, uint32_t bytes, int fd) noexcept override {
    if (pair_->kind != FabricKind::kShm) return ServeLane::PostWithDescriptor(index, bytes, fd);
    auto passed = std::make_shared<UniqueFd>(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (passed->get() < 0) return absl::ResourceExhaustedError("no descriptor is left");
    world_->network.Count(Fault::kMappedCopy);
    return Post(index, bytes, std::move(passed));
  }

 private:
  absl::Status Post(uint32_t index, uint32_t bytes, std::shared_ptr<UniqueFd> passed) noexcept;
  const std::shared_ptr<LaneWorld> world_;
  const std::shared_ptr<Pair> pair_;
};

absl::Status SimServeLane::Post(uint32_t index, uint32_t bytes,
                                std::shared_ptr<UniqueFd> passed) noexcept {
  Slot& slot = *pair_->slots[index];
  CKV_CHECK(slot.is_holders && bytes <= pair_->shape.reply_bytes_max);
  slot.is_holders = false;
  if (!pair_->holder_status.ok()) return pair_->holder_status;
  const auto sent = reply(index).first(bytes);
  if (world_->on_reply) {
    world_->on_reply({pair_->holder, request(index).first(slot.asked_bytes), sent});
  }
  const uint32_t from = pair_->holder->node, to = pair_->requester->node;
  const Fate fate = world_->network.Send(from, to, /*is_frame=*/true);
  if (fate.breaks) {
    TakeDown(*pair_, "the connection broke");
    return absl::OkStatus();
  }
  std::vector<std::byte> copy(sent.begin(), sent.end());
  if (fate.lost) {
    if (slot.post == slot.asked_post) {
      slot.lost = true;
      if (slot.state == SlotState::kAbandoned) {
        slot.state = SlotState::kFree;
        --pair_->in_flight;
      }
    }
    if (world_->network.blocked(from, to)) LookAgain(&world_->network, pair_, from, to);
    return absl::OkStatus();
  }
  if (fate.corrupted) Damage(copy, fate.salt);
  const uint64_t post = slot.asked_post;
  if (fate.duplicated) {
    Sim().At(fate.arrives_again, [pair = pair_, index, post, copy] {
      ArriveAtRequester(*pair, index, post, copy, /*is_again=*/true, nullptr);
    });
  }
  Sim().At(fate.arrives,
           [pair = pair_, index, post, copy = std::move(copy), passed = std::move(passed)] {
             ArriveAtRequester(*pair, index, post, copy, /*is_again=*/false, passed.get());
           });
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<RequestLane> NewRequestLane(std::shared_ptr<LaneWorld> world,
                                            std::shared_ptr<Pair> pair) {
  return std::make_unique<SimRequestLane>(std::move(world), std::move(pair));
}

std::unique_ptr<ServeLane> NewServeLane(std::shared_ptr<LaneWorld> world,
                                        std::shared_ptr<Pair> pair) {
  return std::make_unique<SimServeLane>(std::move(world), std::move(pair));
}

}  // namespace ckv::sim
