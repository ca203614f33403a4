// Connects two ends over verbs. The offer carries the dialler's queue pair. The answer carries the
// holder's, which is already connected and has receives posted. The dialler connects its own and
// sends a hello over it, and the holder's Accept sends a welcome.

#include "transport/verbs/verbs_fabric.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"
#include "transport/handshake.h"
#include "transport/socket.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_lane.h"
#include "transport/verbs/verbs_side_thread.h"
#include "transport/verbs/verbs_wire.h"

namespace ckv {
namespace {

class VerbsListener final : public Listener {
 public:
  VerbsListener(std::shared_ptr<VerbsDevice> device, Clock* clock, UniqueFd epoll,
                const ListenOptions& options, VerbsSide side)
      : device_(std::move(device)),
        clock_(clock),
        gather_regions_(options.gather_regions),
        slot_pinner_(options.slot_pinner),
        side_(std::move(side)),
        epoll_(std::move(epoll)) {}
  // Waits until none of its lanes has the store registered.
  ~VerbsListener() override { side_.thread->Close(side_.source); }

  FabricKind kind() const noexcept override { return FabricKind::kVerbs; }
  int event_fd() const noexcept override { return epoll_.get(); }

  absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                     std::string_view account, uint64_t tag,
                                     Instant deadline) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    CKV_ASSIGN_OR_RETURN(const VerbsEndFrame peer, DecodeVerbsOffer(offer));
    Expire();
    {
      absl::MutexLock lock(&mu_);
      if (invited_.size() >= kInvitationCountMax) {
        return absl::ResourceExhaustedError("too many lanes are being opened; retry later");
      }
    }
    Invited invited;
    invited.tag = tag;
    invited.deadline = deadline;
    invited.peer = peer;
    CKV_ASSIGN_OR_RETURN(invited.end, VerbsEnd::ForHolder(device_, clock_, shape,
                                                          std::string(account), slot_pinner_));
    CKV_RETURN_IF_ERROR(invited.end->connection->Establish(peer));
    const InvitationKey key = RandomInvitationKey();
    invited.token = key.token;
    VerbsAnswer answer = {key, invited.end->Describe()};
    answer.end.generation = peer.generation;
    answer.end.segment_bytes = device_->segment_bytes();
    (void)invited.end->connection->Arm(false);  // the answer is not sent yet: nothing has arrived
    CKV_RETURN_IF_ERROR(Add(key.id, std::move(invited)));
    return EncodeVerbsAnswer(answer);
  }

  std::optional<AcceptedLane> Accept() override {
    Expire();
    std::array<epoll_event, 16> events;
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      std::optional<Invited> invited = Remove(id);
      if (!invited) continue;
      const absl::StatusOr<bool> greeted = ReadHello(*invited, id);
      if (!greeted.ok()) {
        Log().warn("verbs listener: dropped a lane: {}", std::string(greeted.status().message()));
        side_.Retire(std::move(invited->end));
        continue;
      }
      if (!*greeted) {
        if (absl::Status status = Add(id, *std::move(invited)); !status.ok()) {
          Log().warn("verbs listener: {}", std::string(status.message()));
        }
        continue;
      }
      invited->end->connection->Start();
      invited->end->connection->SendControl(VerbsControl::kWelcome);
      return AcceptedLane{invited->tag, NewVerbsServeLane(std::move(invited->end), invited->peer,
                                                          gather_regions_, side_)};
    }
    return std::nullopt;
  }

 private:
  struct Invited {
    std::unique_ptr<VerbsEnd> end;
    VerbsEndFrame peer;
    uint64_t tag = 0;
    Token token{};
    Instant deadline;
  };

  absl::Status Add(uint64_t id, Invited invited) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = id;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, invited.end->connection->event_fd(), &event) != 0) {
      return ErrnoStatus("epoll of an invitation");
    }
    invited_.insert_or_assign(id, std::move(invited));
    return absl::OkStatus();
  }

  std::optional<Invited> Remove(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto it = invited_.find(id);
    if (it == invited_.end()) return std::nullopt;
    std::optional<Invited> invited(std::move(it->second));
    invited_.erase(it);
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, invited->end->connection->event_fd(), nullptr);
    return invited;
  }

  // Returns true if the hello has arrived. Fails if another message arrived, or the connection
  // broke.
  absl::StatusOr<bool> ReadHello(Invited& invited, uint64_t id) {
    VerbsConnection& connection = *invited.end->connection;
    while (true) {
      connection.Disarm();
      if (const VerbsMessage* message = connection.Front(); message != nullptr) {
        return CheckHello(invited, id, *message);
      }
      connection.NoteEmpty();
      if (!connection.failure().ok()) return connection.failure();
      if (connection.Arm(false)) return false;
    }
  }

  static absl::StatusOr<bool> CheckHello(Invited& invited, uint64_t id,
                                         const VerbsMessage& message) {
    VerbsHello hello;
    if (message.immediate.control != VerbsControl::kHello || message.bytes != sizeof(hello)) {
      return absl::InvalidArgumentError("its first message is no hello");
    }
    const uint32_t buffer = message.buffer;
    std::memcpy(&hello, invited.end->memory.request(buffer).data(), sizeof(hello));
    const HelloFrame& frame = hello.hello;
    if (frame.magic != kHelloMagic || frame.version != kHandshakeVersion ||
        frame.invitation != id || hello.generation != invited.peer.generation ||
        !SameToken(frame.token, invited.token)) {
      return absl::InvalidArgumentError("its hello is to another invitation");
    }
    invited.end->connection->Pop();
    invited.end->connection->Repost(buffer);
    return true;
  }

  void Expire() ABSL_LOCKS_EXCLUDED(mu_) {
    const Instant now = clock_->Now();
    std::vector<std::unique_ptr<VerbsEnd>> dead = TakeExpired(now);
    for (std::unique_ptr<VerbsEnd>& end : dead) side_.Retire(std::move(end));
  }

  std::vector<std::unique_ptr<VerbsEnd>> TakeExpired(Instant now) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<std::unique_ptr<VerbsEnd>> dead;
    absl::MutexLock lock(&mu_);
    for (auto it = invited_.begin(); it != invited_.end();) {
      const auto next = std::next(it);
      if (it->second.deadline <= now) {
        (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.end->connection->event_fd(),
                        nullptr);
        dead.push_back(std::move(it->second.end));
        invited_.erase(it);
      }
      it = next;
    }
    return dead;
  }

  const std::shared_ptr<VerbsDevice> device_;
  Clock* const clock_;
  const std::vector<MemoryRegion> gather_regions_;
  const std::shared_ptr<MemoryPinner> slot_pinner_;
  const VerbsSide side_;
  const UniqueFd epoll_;
  absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Invited> invited_ ABSL_GUARDED_BY(mu_);
};

class VerbsDialer final : public Dialer {
 public:
  VerbsDialer(std::unique_ptr<VerbsEnd> end, Clock* clock, VerbsSide side)
      : end_(std::move(end)), clock_(clock), side_(std::move(side)) {
    here_ = end_->Describe();
    here_.generation = RandomWord();
    here_.landing = reinterpret_cast<uint64_t>(end_->memory.reply(0).data());
    here_.reply_stride =
        static_cast<uint32_t>(LayOutSlots(end_->shape, kControlBytes).reply_stride);
    here_.landing_key = end_->landing_key;
    offer_ = EncodeVerbsOffer(here_);
  }

  const std::string& offer() const override { return offer_; }

  absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                       Instant deadline) override {
    CKV_CHECK(end_ != nullptr);  // once
    CKV_ASSIGN_OR_RETURN(const VerbsAnswer holder, DecodeVerbsAnswer(answer, here_));
    std::unique_ptr<VerbsEnd> end = std::move(end_);
    VerbsConnection& connection = *end->connection;
    CKV_RETURN_IF_ERROR(connection.Establish(holder.end));
    if (end->window != nullptr) {
      connection.BindWindow(std::exchange(end->window, nullptr), end->landing_key, *end->replies,
                            here_.landing, uint64_t{here_.reply_stride} * here_.slot_count);
    }
    VerbsHello hello;
    hello.hello.invitation = holder.key.id;
    hello.hello.token = holder.key.token;
    hello.generation = here_.generation;
    connection.SendControl(VerbsControl::kHello, BytesOf(hello));
    CKV_RETURN_IF_ERROR(AwaitWelcome(connection, deadline));
    connection.Start();
    return NewVerbsRequestLane(std::move(end), holder.end.segment_bytes, side_);
  }

 private:
  // A holder may take the hello and then disappear: killed, or its invitation expired in that
  // instant. It then sends nothing, so this probes its device, once.
  absl::Status AwaitWelcome(VerbsConnection& connection, Instant deadline) {
    Instant ask = std::min(deadline, clock_->Now() + connection.probe_interval());
    while (true) {
      if (const VerbsMessage* message = connection.Front(); message != nullptr) {
        const bool welcome = message->immediate.control == VerbsControl::kWelcome;
        const bool bye = message->immediate.control == VerbsControl::kBye;
        connection.Pop();
        if (welcome) return absl::OkStatus();
        if (bye) return absl::UnavailableError("the holder has let the invitation go");
        return absl::InvalidArgumentError("the holder's first message is no welcome");
      }
      connection.NoteEmpty();
      if (!connection.failure().ok()) return Annotate(connection.failure(), "verbs hello");
      if (!connection.Arm(false)) continue;
      const absl::Status come = WaitFor(connection.event_fd(), POLLIN, *clock_, ask);
      connection.Disarm();
      if (absl::IsDeadlineExceeded(come) && ask < deadline) {
        connection.Ask();
        ask = deadline;
      } else if (!come.ok()) {
        return Annotate(come, "verbs welcome");
      }
    }
  }

  std::unique_ptr<VerbsEnd> end_;
  Clock* const clock_;
  const VerbsSide side_;
  VerbsEndFrame here_;
  std::string offer_;
};

class DeviceFabric final : public VerbsFabric {
 public:
  DeviceFabric(std::shared_ptr<VerbsDevice> device, Clock* clock,
               std::shared_ptr<VerbsSideThread> side)
      : device_(std::move(device)),
        clock_(clock),
        side_(std::move(side)),
        dialled_(side_->Open()) {}
  // If a lane outlives the fabric, the thread that destroys it tears it down.
  ~DeviceFabric() override { side_->Stop(); }

  FabricKind kind() const noexcept override { return FabricKind::kVerbs; }
  VerbsUse use() const override { return device_->budget().use(); }
  bool windows() const override { return device_->windows(); }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    CKV_RETURN_IF_ERROR(device_->CheckPort());
    UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll.valid()) return ErrnoStatus("epoll_create1");
    return std::make_unique<VerbsListener>(device_, clock_, std::move(epoll), options,
                                           VerbsSide{side_, side_->Open()});
  }

  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    CKV_ASSIGN_OR_RETURN(std::unique_ptr<VerbsEnd> end,
                         VerbsEnd::ForRequester(device_, clock_, shape));
    return std::make_unique<VerbsDialer>(std::move(end), clock_, VerbsSide{side_, dialled_});
  }

 private:
  const std::shared_ptr<VerbsDevice> device_;
  Clock* const clock_;
  const std::shared_ptr<VerbsSideThread> side_;
  const VerbsSourceId dialled_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsFabric>> NewVerbsFabric(const VerbsOptions& options,
                                                            Clock* clock) {
  return NewVerbsFabric(options, clock, nullptr);
}

absl::StatusOr<std::unique_ptr<VerbsFabric>> NewVerbsFabric(const VerbsOptions& options,
                                                            Clock* clock,
                                                            std::shared_ptr<VerbsSideThread> side) {
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<VerbsDevice> device, VerbsDevice::Open(options));
  if (side == nullptr) side = std::make_shared<VerbsSideThread>();
  return std::make_unique<DeviceFabric>(std::move(device), clock, std::move(side));
}

}  // namespace ckv
