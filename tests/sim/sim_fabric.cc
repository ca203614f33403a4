// A lane is a Pair: the buffers of both ends, what has arrived at each, and whether each end knows
// that it is down. Frames travel as copies, in events. Only the thread that has the turn is here,
// so nothing is locked.

#include "tests/sim/sim_fabric.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "transport/wire.h"

namespace ckv::sim {
constexpr int64_t kSilence = 3 * kSecond;

class LaneEvent {
 public:
  LaneEvent() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { CKV_CHECK(fd_ >= 0); }
  ~LaneEvent() { close(fd_); }
  LaneEvent(const LaneEvent&) = delete;
  LaneEvent& operator=(const LaneEvent&) = delete;
  int fd() const { return fd_; }
  void Set() const { CKV_CHECK(eventfd_write(fd_, 1) == 0); }
  void Clear() const {
    eventfd_t count = 0;
    [[maybe_unused]] const int none = eventfd_read(fd_, &count);
  }

 private:
  const int fd_;
};

struct Buffer {
  explicit Buffer(size_t bytes) : memory(bytes + 64) {}
  std::span<std::byte> span(size_t bytes) {
    void* at = memory.data();
    size_t room = memory.size();
    return {static_cast<std::byte*>(std::align(64, bytes, at, room)), bytes};
  }
  std::vector<std::byte> memory;
};

enum class SlotState : uint8_t { kFree, kTaken, kPosted, kAbandoned, kDone };

struct Slot {
  explicit Slot(const LaneShape& shape)
      : sent(shape.request_bytes_max),
        answer(shape.reply_bytes_max),
        asked(shape.request_bytes_max),
        reply(shape.reply_bytes_max) {}
  // The requester's end.
  SlotState state = SlotState::kFree;
  uint64_t post = 0;  // the number of its last post
  bool lost = false;  // the request or its reply
  Buffer sent, answer;
  // The holder's end.
  bool is_holders = false;
  uint64_t asked_post = 0;
  uint32_t asked_bytes = 0;
  Buffer asked, reply;
  // The last reply that arrived, for a duplicate.
};

// The bytes that a fault changes are those of the header, whose checksum finds them: below a body,
// tcp and verbs have checksums of their own.
static void Damage(std::vector<std::byte>& bytes, uint64_t salt) {
  if (bytes.empty()) return;
  const size_t at = salt % std::min<size_t>(bytes.size(), sizeof(ReplyHeader));
  bytes[at] ^= static_cast<std::byte>(1u << (salt >> 32 & 7));
}

struct Pair {
  explicit Pair(const LaneShape& shape_in) : shape(shape_in) {
    for (uint32_t i = 0; i < shape.slot_count; ++i) slots.push_back(std::make_unique<Slot>(shape));
  }
  LaneShape shape;
  Process* requester = nullptr;
  Process* holder = nullptr;
  std::vector<std::unique_ptr<Slot>> slots;
  uint64_t post_count = 0;
  uint32_t in_flight = 0;
  std::deque<Completion> completed;
  std::deque<Arrival> arrived;
  LaneEvent requester_event, holder_event;
  absl::Status requester_status, holder_status;
  bool requester_gone = false, holder_gone = false;  // that end was destroyed
};

class FabricHub {
 public:
  FabricHub(Network* network, OnReply on_reply)
      : network_(*network), on_reply_(std::move(on_reply)) {}

  struct Inbox {
    std::deque<AcceptedLane> lanes;
    LaneEvent event;
    Process* process = nullptr;
  };
  struct Invited {
    std::shared_ptr<Inbox> inbox;
    LaneShape shape;
    uint64_t tag = 0;
    int64_t until = 0;
  };

  Network& network() { return network_; }
  const OnReply& on_reply() const { return on_reply_; }
  uint64_t Invite(Invited invited) {
    invited_[++invitation_count_] = std::move(invited);
    return invitation_count_;
  }
  std::optional<Invited> Take(uint64_t number) {
    const auto found = invited_.find(number);
    if (found == invited_.end()) return std::nullopt;
    Invited taken = std::move(found->second);
    invited_.erase(found);
    return taken;
  }
  void Add(std::weak_ptr<Pair> pair) { pairs_.push_back(std::move(pair)); }
  std::vector<std::weak_ptr<Pair>>& pairs() { return pairs_; }

 private:
  Network& network_;
  const OnReply on_reply_;
  uint64_t invitation_count_ = 0;
  std::map<uint64_t, Invited> invited_;
  std::vector<std::weak_ptr<Pair>> pairs_;
};

std::shared_ptr<FabricHub> NewFabricHub(Network* network, OnReply on_reply) {
  return std::make_shared<FabricHub>(network, std::move(on_reply));
}

namespace {

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

// A frame was lost because its link is blocked.
void LookAgain(FabricHub* hub, std::shared_ptr<Pair> pair, uint32_t from, uint32_t to) {
  Sim().At(Sim().now() + kSilence, [hub, pair = std::move(pair), from, to] {
    if (hub->network().blocked(from, to)) TakeDown(*pair, "nothing was heard for 3 s");
  });
}

class SimRequestLane final : public RequestLane {
 public:
  SimRequestLane(std::shared_ptr<FabricHub> hub, std::shared_ptr<Pair> pair)
      : hub_(std::move(hub)), pair_(std::move(pair)) {}
  ~SimRequestLane() override {
    pair_->requester_gone = true;
    Sim().At(Sim().now() + 50 * kUs, [pair = pair_] {
      if (!pair->holder_status.ok()) return;
      pair->holder_status = absl::UnavailableError("the requester has gone");
      pair->holder_event.Set();
    });
  }
  FabricKind kind() const noexcept override { return FabricKind::kTcp; }
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
  }
  void Abandon(uint32_t index) noexcept override {
    Slot& slot = *pair_->slots[index];
    CKV_CHECK(slot.state == SlotState::kPosted || slot.state == SlotState::kDone);
    if (slot.state == SlotState::kDone || slot.lost) {
      if (slot.state == SlotState::kPosted) --pair_->in_flight;
      slot.state = SlotState::kFree;
    } else {
      slot.state = SlotState::kAbandoned;
    }
  }
  uint32_t in_flight() const noexcept override { return pair_->in_flight; }

 private:
  const std::shared_ptr<FabricHub> hub_;
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
  const Fate fate = hub_->network().Send(from, to, /*is_frame=*/true);
  if (fate.breaks) {
    TakeDown(*pair_, "the connection broke");
    return absl::OkStatus();
  }
  if (fate.lost) {
    slot.lost = true;
    if (hub_->network().blocked(from, to)) LookAgain(hub_.get(), pair_, from, to);
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

void ArriveAtRequester(Pair& pair, uint32_t index, uint64_t post, std::span<const std::byte> bytes,
                       bool is_again) {
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
  --pair.in_flight;
  pair.completed.push_back(done);
  pair.requester_event.Set();
}

class SimServeLane final : public ServeLane {
 public:
  SimServeLane(std::shared_ptr<FabricHub> hub, std::shared_ptr<Pair> pair)
      : hub_(std::move(hub)), pair_(std::move(pair)) {}
  ~SimServeLane() override {
    pair_->holder_gone = true;
    Sim().At(Sim().now() + 50 * kUs, [pair = pair_] {
      if (!pair->requester_status.ok()) return;
      pair->requester_status = absl::UnavailableError("the holder has gone");
      pair->requester_event.Set();
    });
  }
  FabricKind kind() const noexcept override { return FabricKind::kTcp; }
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
  absl::Status Post(uint32_t index, uint32_t bytes) noexcept override;

 private:
  const std::shared_ptr<FabricHub> hub_;
  const std::shared_ptr<Pair> pair_;
};

absl::Status SimServeLane::Post(uint32_t index, uint32_t bytes) noexcept {
  Slot& slot = *pair_->slots[index];
  CKV_CHECK(slot.is_holders && bytes <= pair_->shape.reply_bytes_max);
  slot.is_holders = false;
  if (!pair_->holder_status.ok()) return pair_->holder_status;
  const auto sent = reply(index).first(bytes);
  if (hub_->on_reply()) {
    hub_->on_reply()({pair_->holder, request(index).first(slot.asked_bytes), sent});
  }
  const uint32_t from = pair_->holder->node, to = pair_->requester->node;
  const Fate fate = hub_->network().Send(from, to, /*is_frame=*/true);
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
    if (hub_->network().blocked(from, to)) LookAgain(hub_.get(), pair_, from, to);
    return absl::OkStatus();
  }
  if (fate.corrupted) Damage(copy, fate.salt);
  const uint64_t post = slot.asked_post;
  if (fate.duplicated) {
    Sim().At(fate.arrives_again, [pair = pair_, index, post, copy] {
      ArriveAtRequester(*pair, index, post, copy, /*is_again=*/true);
    });
  }
  Sim().At(fate.arrives, [pair = pair_, index, post, copy = std::move(copy)] {
    ArriveAtRequester(*pair, index, post, copy, /*is_again=*/false);
  });
  return absl::OkStatus();
}

class SimListener final : public Listener {
 public:
  SimListener(std::shared_ptr<FabricHub> hub, Process* process, const NodeClock* clock)
      : hub_(std::move(hub)), clock_(clock), inbox_(std::make_shared<FabricHub::Inbox>()) {
    inbox_->process = process;
  }
  FabricKind kind() const noexcept override { return FabricKind::kTcp; }
  int event_fd() const noexcept override { return inbox_->event.fd(); }
  absl::StatusOr<std::string> Invite(std::string_view /*offer*/, const LaneShape& shape,
                                     std::string_view /*account*/, uint64_t tag,
                                     Instant deadline) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    return absl::StrCat(hub_->Invite({inbox_, shape, tag, clock_->TimeOf(deadline)}));
  }
  std::optional<AcceptedLane> Accept() override {
    inbox_->event.Clear();
    if (inbox_->lanes.empty()) return std::nullopt;
    AcceptedLane lane = std::move(inbox_->lanes.front());
    inbox_->lanes.pop_front();
    if (!inbox_->lanes.empty()) inbox_->event.Set();
    return lane;
  }

 private:
  const std::shared_ptr<FabricHub> hub_;
  const NodeClock* const clock_;
  const std::shared_ptr<FabricHub::Inbox> inbox_;
};

class SimDialer final : public Dialer {
 public:
  SimDialer(std::shared_ptr<FabricHub> hub, const LaneShape& shape, Process* process,
            const NodeClock* clock)
      : hub_(std::move(hub)), shape_(shape), process_(process), clock_(clock) {}
  const std::string& offer() const override { return offer_; }
  absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                       Instant deadline) override {
    uint64_t number = 0;
    if (!absl::SimpleAtoi(std::string(answer), &number)) {
      return absl::InvalidArgumentError("answer");
    }
    const std::optional<FabricHub::Invited> invited = hub_->Take(number);
    if (!invited) return absl::UnavailableError("no such invitation");
    if (hub_->network().LacksDescriptors(*process_))
      return absl::ResourceExhaustedError("socket: too many open files");
    Process* const holder = invited->inbox->process;
    const Fate there = hub_->network().Send(process_->node, holder->node, /*is_frame=*/false);
    const Fate back = hub_->network().Send(holder->node, process_->node, /*is_frame=*/false);
    if (there.lost || back.lost) {
      Sim().SleepUntil(clock_->TimeOf(deadline));
      return absl::DeadlineExceededError("nobody answers");
    }
    Sim().SleepUntil(
        std::min(clock_->TimeOf(deadline), there.arrives + back.arrives - Sim().now()));
    // The connection waits to be accepted.
    if (hub_->network().LacksDescriptors(*holder))
      Sim().SleepUntil(std::min(clock_->TimeOf(deadline), holder->no_descriptors_until));
    if (hub_->network().LacksDescriptors(*holder))
      return absl::DeadlineExceededError("nobody answers");
    if (holder->dead || invited->until < Sim().now())
      return absl::UnavailableError("connection refused");
    const auto pair = std::make_shared<Pair>(shape_);
    pair->requester = process_;
    pair->holder = holder;
    hub_->Add(pair);
    invited->inbox->lanes.push_back({invited->tag, std::make_unique<SimServeLane>(hub_, pair)});
    invited->inbox->event.Set();
    return std::make_unique<SimRequestLane>(hub_, pair);
  }

 private:
  const std::shared_ptr<FabricHub> hub_;
  const LaneShape shape_;
  Process* const process_;
  const NodeClock* const clock_;
  const std::string offer_ = "sim";
};

class SimFabric final : public Fabric {
 public:
  SimFabric(std::shared_ptr<FabricHub> hub, Process* process, const NodeClock* clock)
      : hub_(std::move(hub)), process_(process), clock_(clock) {}
  FabricKind kind() const noexcept override { return FabricKind::kTcp; }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions&) override {
    return std::make_unique<SimListener>(hub_, process_, clock_);
  }
  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    return std::make_unique<SimDialer>(hub_, shape, process_, clock_);
  }

 private:
  const std::shared_ptr<FabricHub> hub_;
  Process* const process_;
  const NodeClock* const clock_;
};

}  // namespace

std::unique_ptr<Fabric> NewSimFabric(std::shared_ptr<FabricHub> hub, Process* process,
                                     const NodeClock* clock) {
  return std::make_unique<SimFabric>(std::move(hub), process, clock);
}

void BreakLanesOf(FabricHub& hub, const Process* process, bool silent) {
  const int64_t after = silent ? kSilence : 200 * kUs;
  std::erase_if(hub.pairs(), [](const auto& pair) { return pair.expired(); });
  for (const std::weak_ptr<Pair>& one : hub.pairs()) {
    const std::shared_ptr<Pair> pair = one.lock();
    if (pair == nullptr || (pair->requester != process && pair->holder != process)) continue;
    if (pair->holder == process) pair->holder_gone = true;
    if (pair->requester == process) pair->requester_gone = true;
    Sim().At(Sim().now() + after, [pair] { TakeDown(*pair, "the peer has gone"); });
  }
}

}  // namespace ckv::sim
