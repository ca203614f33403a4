// How bytes move between a requester thread and a holder thread: fabrics, lanes, slots.
//
// A lane is one ordered channel with a fixed ring of slots. A slot is two buffers, one for a
// request and one for its reply, and that is the whole flow control: a requester that holds no free
// slot may not post (its credits are its free slots), and a holder replies only into the slot that
// asked. Nothing is allocated or resized after a lane is up, and no queue can overflow: a slot is
// in one direction at most once.
//
//      requester (RequestLane)                       holder (ServeLane)
//      Acquire -> slot                               .
//      write request(slot)                           .
//      Post(slot, bytes) ------------------------->  Poll -> Arrival{slot, bytes}
//      .                                             read request(slot), write reply(slot)
//      Poll -> Completion{slot, bytes} <-----------  Post(slot, bytes)
//      read reply(slot)                              .
//      Release(slot)                                 .
//
// In code, the round trip above is:
//
//      const std::optional<uint32_t> slot = lane.Acquire();
//      if (!slot) return busy;                       // all in flight: Poll, then try again
//      write(lane.request(*slot));
//      if (absl::Status down = lane.Post(*slot, bytes); !down.ok()) return down;
//      ... Poll until it returns *slot, see below ...
//      read(lane.reply(*slot).first(done.bytes));    // distrust it: wire.h decodes
//      lane.Release(*slot);
//
// loopback and shm have one memory at both ends, so request(slot) and reply(slot) are the same
// bytes there and nothing is copied. tcp keeps a copy at each end and moves it by the kernel. verbs
// (transport/verbs_fabric.h) SENDs requests into posted receives and RDMA WRITEs replies WITH
// IMMEDIATE into the landing slots, so that the holder initiates, and no key of its store leaves
// the process.
//
// Bringing a lane up takes one exchange of opaque bytes over the control plane (verbs will need it
// for queue pair numbers): Dial makes an offer, the holder's Invite turns it into an answer,
// Connect completes the lane, and Accept hands the other end to the holder.
//
//      requester                        control plane      holder
//      dialer = fabric.Dial(shape)
//      dialer->offer()           ------ open session --->  listener->Invite(offer, shape, ...)
//      dialer->Connect(answer)   <----- answer ----------
//                                ------ data fabric ---->  listener->Accept() -> {tag, lane}
//
// Waiting: spin on Poll while work is near, then sleep. Never sleep without Arm, and look at
// status() whenever Poll gives nothing, for a lane that is down gives nothing for ever:
//
//      while (lane.Poll(out) == 0) {
//        if (!lane.status().ok()) return lane.status();
//        if (still_spinning || !lane.Arm()) continue;
//        poll(lane.event_fd(), until the deadline);
//        lane.Disarm();
//      }
//
// Polling sends too: what the kernel would not take at Post goes out with later Polls, so an end
// that has posted keeps polling or sleeps on its event_fd.
//
// Threads: a lane belongs to one thread at a time at each end; whoever owns lanes claims a
// ThreadRole over them, and a hand-over is ordered by something else (a queue, a mutex). Fabric and
// Listener::Invite are thread-safe; Listener::Accept belongs to the accepting thread. A fabric
// outlives its listeners and dialers; lanes outlive nothing and need nobody. Destroying a lane
// waits for no peer.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "transport/scatter_list.h"
#include "transport/socket.h"

namespace ckv {

enum class FabricKind : uint8_t { kLoopback = 1, kShm = 2, kTcp = 3, kVerbs = 4 };

// "loopback", "shm", "tcp", "verbs".
std::string_view FabricName(FabricKind kind);
//   InvalidArgument     lists the names.
absl::StatusOr<FabricKind> ParseFabricName(std::string_view name);

// Whether both ends of its lanes see one memory, so that no byte crosses anything.
constexpr bool SharesMemory(FabricKind kind) {
  return kind == FabricKind::kShm || kind == FabricKind::kLoopback;
}

inline constexpr uint32_t kSlotCountMax = 256;
inline constexpr uint32_t kSlotBytesMax = 64u << 20;
inline constexpr uint64_t kLaneBytesMax = 4ull << 30;  // all slots, both buffers
inline constexpr size_t kOfferBytesMax = 4096;         // Dialer::offer
inline constexpr size_t kGatherRunCountMax = 16;       // ServeLane::PostGather

// Fixed for a lane's life and equal at both ends; agreed on in the session.
struct LaneShape {
  uint32_t slot_count = 16;
  // 64 header + 256 rows x 1152 B fit; rounded up to a page.
  uint32_t request_bytes_max = 320u << 10;
  // 64 header + 256 rows x 2056 B (f32 partials) fit; rounded up to a page.
  uint32_t reply_bytes_max = 576u << 10;

  friend bool operator==(const LaneShape&, const LaneShape&) = default;
};

//   InvalidArgument     a count or size is zero or over its limit.
absl::Status ValidateLaneShape(const LaneShape& shape);

struct Arrival {
  uint32_t slot;
  uint32_t bytes;  // of request(slot) that the peer wrote; within request_bytes_max, else distrust
};
struct Completion {
  uint32_t slot;
  uint32_t bytes;  // of reply(slot) that the peer wrote; within reply_bytes_max
};

// What both ends have in common.
//
// What the peer may cause is a status; what only our own code can cause ends the process
// (CKV_CHECK): a slot used out of its turn, or a Post of more than request_bytes_max or
// reply_bytes_max.
//
// When a lane goes down, what became of a posted request is not known: the holder may have it, and
// its reply may be one of those that were under way. Replies that had come are delivered by further
// Polls; the rest never complete, and their slots stay posted (in_flight counts them) until the
// lane is destroyed, which frees everything. So a requester that finds status() down gives up on
// every request that it still awaits and posts them again on another lane, if it wants to; a
// holder drops what it has not answered.
class Lane {
 public:
  virtual ~Lane() = default;

  virtual FabricKind kind() const noexcept = 0;
  virtual const LaneShape& shape() const noexcept = 0;

  // OK while the lane is up. Once it is not, it stays so: every later Post fails, Poll returns
  // nothing new, and the owner destroys the lane. Buffers stay readable until then. What the peer
  // sent before it went is delivered first. Found by polling: a peer's death within some 256 empty
  // polls (shm looks at its socket then), or by the next poll after a sleep.
  //   Unavailable         the peer has gone or the link broke.
  //   InvalidArgument     the peer broke the lane's rules (slot out of range or out of turn, too
  //                       many bytes, a damaged ring); its end sees Unavailable.
  virtual absl::Status status() const = 0;

  // Sleeping. event_fd becomes readable when something arrives after Arm returned true, or the
  // peer goes; it may wake for nothing. Arm returns false, and nothing is armed, if something is
  // there already or the lane is down: poll instead. Disarm after waking, before polling. While not
  // armed, the peer's Post makes no system call on shm. The descriptor is the lane's; ask for it
  // before each sleep.
  virtual int event_fd() const noexcept = 0;
  virtual bool Arm() noexcept = 0;
  virtual void Disarm() noexcept = 0;
};

// The requester's end.
class RequestLane : public Lane {
 public:
  // A free slot, or nothing when all are in flight. The slot is the caller's until Post.
  virtual std::optional<uint32_t> Acquire() noexcept = 0;

  // Where the request is written: request_bytes_max bytes, 64-byte aligned. Valid from Acquire to
  // Post.
  virtual std::span<std::byte> request(uint32_t slot) noexcept = 0;

  // Sends the first `bytes` of request(slot), at most request_bytes_max. The buffer is the fabric's
  // until the completion. OK says that it was handed over, not that it arrived.
  //   status()'s error    the lane is down; the slot is not sent and is free again.
  virtual absl::Status Post(uint32_t slot, uint32_t bytes) noexcept = 0;

  // As Post, where another Post or a Poll follows at once: the fabric may keep this one until then
  // and hand over several in one system call.
  virtual absl::Status PostLater(uint32_t slot, uint32_t bytes) noexcept {
    return Post(slot, bytes);
  }

  // Where the body of the reply to this one request shall go; call between Acquire and Post. What
  // is behind the head of a reply of exactly head_bytes + body.bytes() bytes is then written to
  // `body` and not to reply(slot), which saves its owner a copy. `body` is the fabric's from Post
  // to the completion or to Abandon; its bytes are anything unless landed().
  // False: not on this fabric; the reply will come whole to reply(slot).
  virtual bool Land(uint32_t /*slot*/, uint32_t /*head_bytes*/,
                    const ScatterList& /*body*/) noexcept {
    return false;
  }
  // Whether the body went there; ask between its completion and its Release.
  virtual bool landed(uint32_t /*slot*/) const noexcept { return false; }

  // Fills `out` with finished slots, in order of arrival, and returns how many. A fabric may
  // deliver twice (fault_fabric does, a retransmitting one could): match the reply's request id
  // against the one awaited in that slot, and ignore a completion that does not match or is not
  // awaited; its slot is not yours to release (I1).
  virtual size_t Poll(std::span<Completion> out) noexcept = 0;

  // The reply; valid from its completion to Release. Written by the peer, so nothing in it is
  // trusted, and on shm the peer can still change it: copy what you check.
  virtual std::span<const std::byte> reply(uint32_t slot) const noexcept = 0;

  // Gives the slot back after its completion (or after Acquire, unused).
  virtual void Release(uint32_t slot) noexcept = 0;

  // Gives up on a posted slot whose completion Poll has not returned. Cancel is not abort: the
  // buffers stay the fabric's, the reply is swallowed when a Poll meets it, and only then is the
  // slot free again.
  virtual void Abandon(uint32_t slot) noexcept = 0;

  // Slots posted and not completed, abandoned ones included.
  virtual uint32_t in_flight() const noexcept = 0;

  // The descriptor that came with the completed reply of `slot`; call between its completion and
  // its Release. One that nobody takes is closed with the slot's release.
  //   NotFound            none came, or this process has no room for one more.
  //   Unimplemented       this fabric passes no descriptors (only shm and loopback do).
  virtual absl::StatusOr<UniqueFd> TakeDescriptor(uint32_t slot) noexcept;
};

// The holder's end.
class ServeLane : public Lane {
 public:
  // Fills `out` with requests that have come, in order of arrival, and returns how many. A slot
  // that arrived is the holder's until it posts the reply; what the peer posts out of its turn is
  // not shown but ends the lane. Requests that out has no room for wait for the next Poll.
  virtual size_t Poll(std::span<Arrival> out) noexcept = 0;

  // The request's bytes; valid from its arrival to Post of its reply.
  virtual std::span<const std::byte> request(uint32_t slot) const noexcept = 0;

  // Where the reply is written: reply_bytes_max bytes, 64-byte aligned; same validity.
  virtual std::span<std::byte> reply(uint32_t slot) noexcept = 0;

  // Sends the first `bytes` of reply(slot), at most reply_bytes_max, in one put. Every arrival is
  // answered exactly once, in any order.
  //   status()'s error    the lane is down; the slot is done with all the same.
  virtual absl::Status Post(uint32_t slot, uint32_t bytes) noexcept = 0;

  // As Post, for a reply whose body lies elsewhere, as rows lie in the store: what the peer gets is
  // the first `head_bytes` of reply(slot), then `runs` (at most kGatherRunCountMax), one after
  // another, reply_bytes_max in all at most. One copy is saved where the fabric can send memory
  // from where it lies; here, it is copied behind the head. The runs are borrowed until
  // gathering(slot) is false, the slot arrives again, or the lane is destroyed.
  //   status()'s error    the lane is down; the slot is done with, and so are the runs.
  virtual absl::Status PostGather(uint32_t slot, uint32_t head_bytes,
                                  std::span<const std::span<const std::byte>> runs) noexcept;
  // Whether the fabric still reads the runs of the slot's last PostGather.
  virtual bool gathering(uint32_t /*slot*/) const noexcept { return false; }

  // As Post, and passes a duplicate of `fd` to the peer beside the reply, see TakeDescriptor.
  //   Unimplemented       this fabric passes no descriptors (only shm and loopback do); nothing was
  //                       posted.
  //   ResourceExhausted   it could not be passed now (limits of the socket or the system); nothing
  //                       was posted.
  //   status()'s error    the lane is down; the slot is done with.
  virtual absl::Status PostWithDescriptor(uint32_t slot, uint32_t bytes, int fd) noexcept;
};

// The requester's half of a lane being brought up.
class Dialer {
 public:
  virtual ~Dialer() = default;

  // Opaque bytes for the holder's Invite, at most kOfferBytesMax.
  virtual const std::string& offer() const = 0;

  // Completes the lane with the holder's answer. Blocks until `deadline` at most; call once. But
  // for loopback it waits for the holder's Accept, so that runs in another thread; a host name in a
  // tcp answer takes the resolver's time beside.
  //   InvalidArgument     the answer is malformed, or for a lane of another shape.
  //   Unavailable         nobody there, or this fabric does not reach that peer: try another.
  //   PermissionDenied    the peer is another user (shm).
  //   DeadlineExceeded
  virtual absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                               Instant deadline) = 0;
};

struct AcceptedLane {
  uint64_t tag;  // of the Invite
  std::unique_ptr<ServeLane> lane;
};

// The holder's place where lanes arrive.
class Listener {
 public:
  virtual ~Listener() = default;

  virtual FabricKind kind() const noexcept = 0;

  // Expects one lane of `shape` for the peer that made `offer`, and returns the answer to send
  // back. `tag` comes out of Accept with the lane. An invitation nobody takes expires at
  // `deadline`. Thread-safe.
  //
  // What the lane takes of a device (verbs) is charged to `account`, from here until the lane is
  // gone: a name that means nothing here, and is worth what checked it (not this offer, where the
  // peer may write anything). All names are alike; the empty one is an account as any other.
  //   InvalidArgument     the offer or the shape is malformed.
  //   Unavailable         this fabric cannot reach that peer (shm: another host).
  //   ResourceExhausted   kInvitationCountMax outstanding, no memory for the slots, or a limit of
  //                       the account or the device.
  virtual absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                             std::string_view account, uint64_t tag,
                                             Instant deadline) = 0;

  // Readable when Accept may have something: a lane, or a stranger to drop.
  virtual int event_fd() const noexcept = 0;

  // The next lane that came up, or nothing. Never blocks. Strangers, wrong tokens and half-open
  // connections are dropped here, after kHandshakeMax, and logged once each.
  virtual std::optional<AcceptedLane> Accept() = 0;
};

inline constexpr size_t kInvitationCountMax = 1024;
inline constexpr Duration kHandshakeMax = std::chrono::seconds(3);

struct ListenOptions {
  std::string tcp_address = "127.0.0.1:0";  // host:port; port 0 takes a free one
  // What answers tell peers to connect to: host:port, port 0 for the bound one; resolved by the
  // peer. Empty: the bound address. Bound to every address (0.0.0.0, ::), it must be given.
  std::string tcp_advertise;
  // Memory that the runs of PostGather lie in, for fabrics that must know it beforehand: verbs
  // registers it, in segments and some time after they are first used, without any remote access.
  // Runs from elsewhere are copied. Outlives the listener and its lanes: the listener's end waits
  // until no destroyed lane has it registered.
  std::span<const std::byte> gather_memory;
};

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual FabricKind kind() const noexcept = 0;

  //   InvalidArgument     the address does not parse.
  //   Unavailable         it cannot be bound; says what to do.
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) = 0;

  //   InvalidArgument     the shape.
  virtual absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) = 0;
};

inline constexpr uint32_t kBusyPollUsMax = 10'000;

struct TcpOptions {
  // Microseconds that an empty poll of a lane looks for packets at the network card's own queue
  // rather than wait for its interrupt (SO_BUSY_POLL, preferred over interrupts), for CPUs that
  // spin anyway. 0 for off; more than kBusyPollUsMax is cut to it. It takes CAP_NET_ADMIN and a
  // card whose driver knows it, and does nothing on loopback; refused, it is logged once and the
  // lanes go on without.
  uint32_t busy_poll_us = 0;
};

// The fabrics of this build. `clock` must outlive them.
std::unique_ptr<Fabric> NewShmFabric(Clock* clock);
std::unique_ptr<Fabric> NewTcpFabric(Clock* clock);
std::unique_ptr<Fabric> NewTcpFabric(Clock* clock, const TcpOptions& options);
// Both ends in one process: for tests, and for a daemon that is holder and requester at once. Ends
// made by one object find each other.
std::unique_ptr<Fabric> NewLoopbackFabric(Clock* clock);

// Identifies this host's kernel and network namespace, the reach of shm: equal iff shm can connect.
// Travels in the session so that same-host peers take shm by themselves.
std::string HostIdentity();

}  // namespace ckv
