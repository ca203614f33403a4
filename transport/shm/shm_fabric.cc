// The fabric within one host: the holder makes the lane's memory and passes it over a Unix socket.
// In order: the requester's offer names its host; Invite makes the memory, and answers with the
// listener's address and a token; Connect dials, checks the peer's user, and sends the token; the
// holder's Accept finds the invitation and passes the memory; both ends map it. The socket becomes
// the doorbell.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"
#include "transport/acceptor.h"
#include "transport/fabric.h"
#include "transport/handshake.h"
#include "transport/lane_memory.h"
#include "transport/shm/ring_lane.h"
#include "transport/shm/shm_peer.h"
#include "transport/socket.h"

namespace ckv {
namespace {

constexpr std::string_view kAddressPrefix = "ckv-shm-";
constexpr size_t kAddressBytes = 8 + 32;  // the prefix and 128 random bits in hex

// The abstract name space belongs to the network namespace and leaves no file behind.
struct AbstractAddress {
  sockaddr_un address = {};
  socklen_t bytes = 0;
};
AbstractAddress MakeAbstractAddress(std::string_view name) {
  AbstractAddress made;
  made.address.sun_family = AF_UNIX;
  CKV_CHECK(name.size() < sizeof(made.address.sun_path));
  std::memcpy(made.address.sun_path + 1, name.data(), name.size());
  made.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

// Accepts only names of ours: an answer must not make us talk to another program's socket.
bool IsLaneAddress(std::string_view name) {
  return name.size() == kAddressBytes && name.starts_with(kAddressPrefix) &&
         std::all_of(name.begin() + kAddressPrefix.size(), name.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

class ShmListener final : public Listener {
 public:
  ShmListener(Acceptor acceptor, std::string address, Clock* clock,
              std::shared_ptr<MemoryPinner> slot_pinner)
      : acceptor_(std::move(acceptor)),
        address_(std::move(address)),
        clock_(clock),
        slot_pinner_(std::move(slot_pinner)) {}

  FabricKind kind() const noexcept override { return FabricKind::kShm; }
  int event_fd() const noexcept override { return acceptor_.event_fd(); }

  absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                     std::string_view /*account*/, uint64_t tag,
                                     Instant deadline) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    CKV_ASSIGN_OR_RETURN(const std::string host, DecodeOffer(FabricKind::kShm, offer));
    if (host != HostIdentity()) {
      return absl::UnavailableError("shm reaches this host only, and the peer is on another");
    }
    CKV_ASSIGN_OR_RETURN(LaneMemory memory, LaneMemory::Create(shape));
    CKV_RETURN_IF_ERROR(memory.Pin(slot_pinner_));
    CKV_ASSIGN_OR_RETURN(
        const InvitationKey key,
        invitations_.Add({std::make_shared<const LaneMemory>(std::move(memory)), tag},
                         clock_->Now(), deadline));
    return EncodeAnswer(FabricKind::kShm, {key, address_});
  }

  std::optional<AcceptedLane> Accept() override {
    invitations_.Expire(clock_->Now());
    while (std::optional<Acceptor::Knock> knock = acceptor_.Next()) {
      if (absl::Status user = CheckPeerOf(knock->fd.get()); !user.ok()) {
        Log().warn("shm listener: {}", std::string(user.message()));
        continue;
      }
      std::optional<Invited> invited = invitations_.Take(knock->key, clock_->Now());
      if (!invited) {
        Log().warn("shm listener: dropped a connection: no such invitation");
        continue;
      }
      const WelcomeFrame welcome = MakeWelcome(invited->memory->shape());
      if (!SendWithFd(knock->fd.get(), BytesOf(welcome), invited->memory->fd())) {
        Log().warn("shm listener: {}", ErrnoText("the peer left before its welcome"));
        continue;
      }
      return AcceptedLane{
          invited->tag,
          NewRingServeLane(FabricKind::kShm, std::move(invited->memory), std::move(knock->fd))};
    }
    return std::nullopt;
  }

 private:
  struct Invited {
    std::shared_ptr<const LaneMemory> memory;
    uint64_t tag = 0;
  };

  Acceptor acceptor_;
  const std::string address_;
  Clock* const clock_;
  const std::shared_ptr<MemoryPinner> slot_pinner_;
  InvitationTable<Invited> invitations_;
};

class ShmDialer final : public Dialer {
 public:
  ShmDialer(const LaneShape& shape, Clock* clock)
      : shape_(shape), clock_(clock), offer_(EncodeOffer(FabricKind::kShm, HostIdentity())) {}

  const std::string& offer() const override { return offer_; }

  absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                       Instant deadline) override {
    CKV_ASSIGN_OR_RETURN(const Answer where, DecodeAnswer(FabricKind::kShm, answer));
    if (!IsLaneAddress(where.address)) {
      return absl::InvalidArgumentError("answer: not the address of a shm listener");
    }
    CKV_ASSIGN_OR_RETURN(UniqueFd socket, ConnectTo(where.address, deadline));
    CKV_RETURN_IF_ERROR(CheckPeerOf(socket.get()));
    HelloFrame hello;
    hello.invitation = where.key.id;
    hello.token = where.key.token;
    CKV_RETURN_IF_ERROR(
        Annotate(SendAll(socket.get(), BytesOf(hello), *clock_, deadline), "shm hello"));
    WelcomeFrame welcome;
    auto memory_fd = ReceiveAllWithFd(socket.get(), WritableBytesOf(welcome), *clock_, deadline);
    if (!memory_fd.ok()) return Annotate(memory_fd.status(), "shm welcome");
    CKV_RETURN_IF_ERROR(CheckWelcome(welcome, shape_));
    CKV_ASSIGN_OR_RETURN(LaneMemory memory, LaneMemory::Adopt(*std::move(memory_fd), shape_));
    return NewRingRequestLane(FabricKind::kShm, std::make_shared<LaneMemory>(std::move(memory)),
                              std::move(socket));
  }

 private:
  absl::StatusOr<UniqueFd> ConnectTo(const std::string& name, Instant deadline) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return ErrnoStatus("socket");
    // A Unix connect waits only for room in the backlog; a non-blocking one would not say when
    // there is room.
    const Duration left = std::max(deadline - clock_->Now(), Duration(1000));
    const timeval limit = {std::min<int64_t>(left.count() / 1'000'000'000, 3600),
                           left.count() % 1'000'000'000 / 1000};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    const AbstractAddress address = MakeAbstractAddress(name);
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) !=
        0) {
      if (errno == EAGAIN) return absl::DeadlineExceededError("the holder's backlog is full");
      return ErrnoStatus("no holder at the shm address: connect");
    }
    return fd;
  }

  const LaneShape shape_;
  Clock* const clock_;
  const std::string offer_;
};

class ShmFabric final : public Fabric {
 public:
  explicit ShmFabric(Clock* clock) : clock_(clock) {}

  FabricKind kind() const noexcept override { return FabricKind::kShm; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return ErrnoStatus("socket");
    const std::string name =
        absl::StrFormat("%s%016x%016x", kAddressPrefix, RandomWord(), RandomWord());
    const AbstractAddress address = MakeAbstractAddress(name);
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) != 0) {
      return ErrnoStatus("bind of an abstract Unix socket");
    }
    if (listen(fd.get(), kListenBacklog) != 0) return ErrnoStatus("listen");
    CKV_ASSIGN_OR_RETURN(Acceptor acceptor,
                         Acceptor::Create(std::move(fd), "shm listener", clock_));
    return std::make_unique<ShmListener>(std::move(acceptor), name, clock_, options.slot_pinner);
  }

  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    return std::make_unique<ShmDialer>(shape, clock_);
  }

 private:
  Clock* const clock_;
};

}  // namespace

absl::Status CheckPeerUser(uid_t peer, uid_t self) {
  if (peer == self) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrFormat(
      "the shm peer is user %d, this is user %d; use tcp between users", peer, self));
}

absl::Status CheckPeerOf(int socket_fd) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return absl::PermissionDeniedError(ErrnoText("the shm peer's user is unknown"));
  }
  return CheckPeerUser(peer.uid, geteuid());
}

std::unique_ptr<Fabric> NewShmFabric(Clock* clock) { return std::make_unique<ShmFabric>(clock); }

}  // namespace ckv
