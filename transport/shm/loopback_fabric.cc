// The fabric within one process: the lane of shm over memory that is mapped once, with no
// handshake.

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/status.h"
#include "transport/fabric.h"
#include "transport/handshake.h"
#include "transport/lane_memory.h"
#include "transport/shm/ring_lane.h"
#include "transport/socket.h"

namespace ckv {
namespace {

// The state that listeners and dialers of one fabric share. Thread-safe; outlives them.
class LoopbackHub {
 public:
  struct Invited {
    LaneShape shape;
    uint64_t tag = 0;
    uint64_t listener = 0;
    std::shared_ptr<MemoryPinner> slot_pinner;
  };

  InvitationTable<Invited>& invitations() { return invitations_; }

  // `event_fd` is a semaphore: readable while lanes wait. Borrowed until Remove.
  uint64_t Add(int event_fd) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    inboxes_[++listener_count_].event_fd = event_fd;
    return listener_count_;
  }

  void Remove(uint64_t listener) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    inboxes_.erase(listener);
  }

  //   Unavailable         the listener is gone.
  //   ResourceExhausted   kInvitationCountMax lanes wait for its Accept.
  absl::Status Push(uint64_t listener, AcceptedLane lane) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto it = inboxes_.find(listener);
    if (it == inboxes_.end()) return absl::UnavailableError("the loopback listener has gone");
    Inbox& inbox = it->second;
    if (inbox.lanes.size() >= kInvitationCountMax) {
      return absl::ResourceExhaustedError("too many lanes wait to be accepted");
    }
    inbox.lanes.push_back(std::move(lane));
    const uint64_t one = 1;
    CKV_CHECK(write(inbox.event_fd, &one, sizeof(one)) == sizeof(one));
    return absl::OkStatus();
  }

  std::optional<AcceptedLane> Pop(uint64_t listener) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Inbox& inbox = inboxes_[listener];
    if (inbox.lanes.empty()) return std::nullopt;
    uint64_t one = 0;
    CKV_CHECK(read(inbox.event_fd, &one, sizeof(one)) == sizeof(one));
    AcceptedLane lane = std::move(inbox.lanes.front());
    inbox.lanes.pop_front();
    return lane;
  }

 private:
  struct Inbox {
    int event_fd = -1;
    std::deque<AcceptedLane> lanes;
  };

  InvitationTable<Invited> invitations_;
  absl::Mutex mu_;
  uint64_t listener_count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, Inbox> inboxes_ ABSL_GUARDED_BY(mu_);
};

class LoopbackListener final : public Listener {
 public:
  LoopbackListener(LoopbackHub* hub, Clock* clock, UniqueFd event,
                   std::shared_ptr<MemoryPinner> slot_pinner)
      : hub_(hub),
        clock_(clock),
        event_(std::move(event)),
        id_(hub->Add(event_.get())),
        slot_pinner_(std::move(slot_pinner)) {}
  ~LoopbackListener() override { hub_->Remove(id_); }

  FabricKind kind() const noexcept override { return FabricKind::kLoopback; }
  int event_fd() const noexcept override { return event_.get(); }

  absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                     std::string_view /*account*/, uint64_t tag,
                                     Instant deadline) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    CKV_RETURN_IF_ERROR(DecodeOffer(FabricKind::kLoopback, offer).status());
    CKV_ASSIGN_OR_RETURN(
        const InvitationKey key,
        hub_->invitations().Add({shape, tag, id_, slot_pinner_}, clock_->Now(), deadline));
    return EncodeAnswer(FabricKind::kLoopback, {key, ""});
  }

  std::optional<AcceptedLane> Accept() override { return hub_->Pop(id_); }

 private:
  LoopbackHub* const hub_;
  Clock* const clock_;
  const UniqueFd event_;
  const uint64_t id_;
  const std::shared_ptr<MemoryPinner> slot_pinner_;
};

class LoopbackDialer final : public Dialer {
 public:
  LoopbackDialer(LoopbackHub* hub, const LaneShape& shape, Clock* clock)
      : hub_(hub), shape_(shape), clock_(clock), offer_(EncodeOffer(FabricKind::kLoopback, "")) {}

  const std::string& offer() const override { return offer_; }

  absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                       Instant /*deadline*/) override {
    CKV_ASSIGN_OR_RETURN(const Answer where, DecodeAnswer(FabricKind::kLoopback, answer));
    const std::optional<LoopbackHub::Invited> invited =
        hub_->invitations().Take(where.key, clock_->Now());
    if (!invited) return absl::UnavailableError("no such invitation: expired, or taken already");
    CKV_RETURN_IF_ERROR(CheckWelcome(MakeWelcome(invited->shape), shape_));
    CKV_ASSIGN_OR_RETURN(LaneMemory made, LaneMemory::CreatePrivate(shape_));
    CKV_RETURN_IF_ERROR(made.Pin(invited->slot_pinner));
    const auto memory = std::make_shared<LaneMemory>(std::move(made));
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return ErrnoStatus("socketpair");
    }
    UniqueFd here(ends[0]);
    UniqueFd there(ends[1]);
    CKV_RETURN_IF_ERROR(hub_->Push(
        invited->listener,
        {invited->tag, NewRingServeLane(FabricKind::kLoopback, memory, std::move(there))}));
    return NewRingRequestLane(FabricKind::kLoopback, memory, std::move(here));
  }

 private:
  LoopbackHub* const hub_;
  const LaneShape shape_;
  Clock* const clock_;
  const std::string offer_;
};

class LoopbackFabric final : public Fabric {
 public:
  explicit LoopbackFabric(Clock* clock) : clock_(clock) {}

  FabricKind kind() const noexcept override { return FabricKind::kLoopback; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
    if (!event.valid()) return ErrnoStatus("eventfd");
    return std::make_unique<LoopbackListener>(&hub_, clock_, std::move(event), options.slot_pinner);
  }

  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    return std::make_unique<LoopbackDialer>(&hub_, shape, clock_);
  }

 private:
  Clock* const clock_;
  LoopbackHub hub_;
};

}  // namespace

std::unique_ptr<Fabric> NewLoopbackFabric(Clock* clock) {
  return std::make_unique<LoopbackFabric>(clock);
}

}  // namespace ckv
