// How lanes come to be: a holder's listener invites, a requester's dialer connects, and the hub
// brings both together. sim_lane.cc has the lanes themselves.

#include "tests/sim/sim_fabric.h"

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status.h"
#include "tests/sim/sim_lane.h"

namespace ckv::sim {

class FabricHub {
 public:
  FabricHub(Network* network, SameHost same_host, OnReply on_reply)
      : world_(new LaneWorld{*network, std::move(on_reply)}), same_host_(std::move(same_host)) {}

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

  Network& network() { return world_->network; }
  const std::shared_ptr<LaneWorld>& world() const { return world_; }
  FabricKind KindBetween(const Process& one, const Process& other) const {
    return same_host_(one.node, other.node) ? FabricKind::kShm : FabricKind::kTcp;
  }
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
  const std::shared_ptr<LaneWorld> world_;
  const SameHost same_host_;
  uint64_t invitation_count_ = 0;
  std::map<uint64_t, Invited> invited_;
  std::vector<std::weak_ptr<Pair>> pairs_;
};

std::shared_ptr<FabricHub> NewFabricHub(Network* network, SameHost same_host, OnReply on_reply) {
  return std::make_shared<FabricHub>(network, std::move(same_host), std::move(on_reply));
}

namespace {

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
    pair->kind = hub_->KindBetween(*process_, *holder);
    hub_->Add(pair);
    invited->inbox->lanes.push_back({invited->tag, NewServeLane(hub_->world(), pair)});
    invited->inbox->event.Set();
    return NewRequestLane(hub_->world(), pair);
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
