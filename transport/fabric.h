// How bytes move between a requester thread and a holder thread: fabrics, lanes, slots.
//
// A lane is one ordered channel with a fixed ring of slots. A slot is two buffers: one for a
// request, one for its reply. The slots are the whole flow control. A requester without a free slot
// may not post, so its credits are its free slots. A holder replies only into the slot that asked.
// Nothing is allocated or resized after a lane is up. No queue can overflow, because a slot travels
// in one direction at a time.
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
//      Completion done;
//      ... wait until Poll({&done, 1}) returned *slot, as in "Waiting" below ...
//      read(lane.reply(*slot).first(done.bytes));    // distrust it: wire.h decodes
//      lane.Release(*slot);
//
// and the holder's end:
//
//      std::array<Arrival, 16> arrivals;
//      while (lane.status().ok()) {                  // until the requester has gone
//        const size_t count = lane.Poll(arrivals);
//        for (const Arrival& one : std::span(arrivals).first(count)) {
//          const uint32_t bytes = answer(lane.request(one.slot).first(one.bytes),
//                                        lane.reply(one.slot));
//          if (!lane.Post(one.slot, bytes).ok()) break;
//        }
//        if (count == 0) sleep, as in "Waiting" below
//      }
//
// On loopback and shm both ends see one memory: the holder's request(slot) and reply(slot) are the
// requester's, and nothing is copied. tcp keeps a copy at each end, and the kernel moves the bytes.
// verbs (transport/verbs/verbs_fabric.h) SENDs requests into posted receives. It sends replies by
// RDMA WRITE WITH IMMEDIATE into the landing slots. So the holder starts every RDMA transfer, and
// no key of its store leaves the process.
//
// Some methods are optional: every fabric accepts the call, but only some do more than the default.
//
//                                       loopback   shm   tcp   verbs   elsewhere
//      PostLater                        -          -     yes   -       is Post
//      Land, landed                     -          -     yes   -       Land returns false
//      PostGather, gathering            -          -     yes   yes     copies the runs
//      PostGather from a dmabuf         -          -     -     yes     Unimplemented
//      PostWithDescriptor               yes        yes   -     -       Unimplemented
//      TakeDescriptor                   yes        yes   -     -       Unimplemented
//
// To bring a lane up, the two ends exchange opaque bytes over the control plane (verbs carries its
// queue pair numbers in them). Dial makes an offer, and the holder's Invite turns it into an
// answer. Connect completes the requester's end, and Accept hands the other end to the holder.
//
//      requester                        control plane      holder
//      dialer = fabric.Dial(shape)
//      dialer->offer()           ------ open session --->  listener->Invite(offer, shape, ...)
//      dialer->Connect(answer)   <----- answer ----------
//                                ------ data fabric ---->  listener->Accept() -> {tag, lane}
//
// Waiting: spin on Poll while a reply is near, then sleep. Never sleep without Arm. Look at
// status() whenever Poll returns nothing, because a lane that is down returns nothing for ever. At
// the deadline, abandon the slot that was posted:
//
//      while (lane.Poll({&done, 1}) == 0 || done.slot != *slot) {
//        if (!lane.status().ok()) return lane.status();
//        if (clock->Now() >= deadline) {
//          lane.Abandon(*slot);                      // the lane frees it once the reply came
//          return absl::DeadlineExceededError("no reply in time");
//        }
//        if (still_spinning || !lane.Arm()) continue;
//        poll(lane.event_fd(), until the deadline);
//        lane.Disarm();
//      }
//
// Poll also sends: bytes that the kernel did not take at Post go out with later Polls. So an end
// that has posted must keep polling, or sleep on its event_fd. A holder that destroys its lane
// right after Post may lose the reply; it polls until status() says that the requester has gone.
//
// Threads: a lane belongs to one thread at a time at each end. The owner of lanes claims a
// ThreadRole over them (BelongTo), and something else (a queue, a mutex) orders a hand-over. Fabric
// and Listener::Invite are thread-safe. Listener::Accept belongs to the accepting thread.
//
// Lifetimes: a fabric outlives its listeners and dialers. A lane needs neither fabric nor listener
// and may outlive both, but not the clock. Destroying a lane waits for no peer.
//
// tests/consumer/fabric_example.cc is a whole program: bring-up, one request, its reply.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "transport/memory_region.h"
#include "transport/scatter_list.h"
#include "transport/socket.h"
#include "transport/thread_role.h"

namespace ckv {

enum class FabricKind : uint8_t { kLoopback = 1, kShm = 2, kTcp = 3, kVerbs = 4 };

// One more than the highest kind: the size of an array by kind.
inline constexpr size_t kFabricKindEnd = 5;

// Returns "loopback", "shm", "tcp" or "verbs".
std::string_view FabricName(FabricKind kind);
//   InvalidArgument     lists the names.
absl::StatusOr<FabricKind> ParseFabricName(std::string_view name);

// Returns whether both ends of the fabric's lanes see one memory, so that no byte is sent anywhere.
constexpr bool SharesMemory(FabricKind kind) {
  return kind == FabricKind::kShm || kind == FabricKind::kLoopback;
}

inline constexpr uint32_t kSlotCountMax = 256;
inline constexpr uint32_t kSlotBytesMax = 64u << 20;
inline constexpr uint64_t kLaneBytesMax = 4ull << 30;  // all slots, both buffers
inline constexpr size_t kOfferBytesMax = 4096;         // Dialer::offer
inline constexpr size_t kGatherRunCountMax = 16;       // ServeLane::PostGather

// The size of a lane: agreed on in the session, equal at both ends, and fixed for the lane's life.
struct LaneShape {
  uint32_t slot_count = 16;
  // Fits headers and entries, and 256 query rows of 1152 bytes, rounded up to 64 KiB.
  uint32_t request_bytes_max = 320u << 10;
  // Fits a header of 64 bytes and 256 partials of 2056 bytes (f32), rounded up to 64 KiB.
  uint32_t reply_bytes_max = 576u << 10;

  friend bool operator==(const LaneShape&, const LaneShape&) = default;
};

//   InvalidArgument     a count or size is zero or over its limit.
absl::Status ValidateLaneShape(const LaneShape& shape);

struct Arrival {
  uint32_t slot;
  // The bytes of request(slot) that the peer wrote: at most request_bytes_max. Distrust their
  // content.
  uint32_t bytes;
};
struct Completion {
  uint32_t slot;
  // The bytes of reply(slot) that the peer wrote: at most reply_bytes_max. Distrust their content.
  uint32_t bytes;
};

// The part that both ends of a lane have in common.
//
// An error that the peer can cause is a status. An error that only our own code can cause ends the
// process (CKV_CHECK). Examples are a slot used out of its turn and a Post beyond its buffer.
//
// When a lane goes down, the fate of a posted request is unknown. The holder may have it, and its
// reply may have been on the way. Further Polls deliver the replies that had come. The other
// requests never complete. Their slots stay posted, and in_flight counts them, until the lane is
// destroyed; that frees everything. So a requester that finds status() down gives up every request
// it still awaits. It may post them again on another lane. A holder drops the requests it has not
// answered.
class Lane {
 public:
  virtual ~Lane() = default;

  virtual FabricKind kind() const noexcept = 0;
  virtual const LaneShape& shape() const noexcept = 0;

  // OK while the lane is up. A lane that went down stays down: every later Post fails, Poll returns
  // nothing new, and the owner destroys the lane. Buffers stay readable until then. Messages that
  // the peer sent before it went are delivered first. Polling finds a peer's death: within some 256
  // empty polls (then shm looks at its socket), or at the next poll after a sleep.
  //   Unavailable         the peer has gone or the connection broke.
  //   InvalidArgument     the peer broke the lane's rules (slot out of range or out of turn, too
  //                       many bytes, a damaged ring); its end sees Unavailable.
  virtual absl::Status status() const = 0;

  // The descriptor to sleep on. It becomes readable when something arrives after Arm returned true,
  // or when the peer goes; it may also wake for nothing. It belongs to the lane; ask for it before
  // each sleep.
  virtual int event_fd() const noexcept = 0;
  // Prepares for a sleep. Returns false, and arms nothing, if something is there already or the
  // lane is down: then poll. On shm the peer's Post makes no system call while this end is not
  // armed.
  virtual bool Arm() noexcept = 0;
  // Ends what Arm began. Call it after waking, before polling.
  virtual void Disarm() noexcept = 0;

  // Names the role of the lane's owner, which must outlive the lane. In debug builds
  // (CKV_CHECK_THREADS) a Post or Poll by a thread without that role ends the process. If it is
  // null (the default), nothing is checked.
  void BelongTo(const ThreadRole* role) noexcept { owner_ = role; }

 protected:
  // Each fabric calls it in Acquire, Post and Poll.
  void AssertOwned() const noexcept {
#ifdef CKV_CHECK_THREADS
    if (owner_ != nullptr) owner_->AssertHeld();
#endif
  }

 private:
  const ThreadRole* owner_ = nullptr;
};

// The requester's end.
class RequestLane : public Lane {
 public:
  // Takes a free slot, or returns nullopt if all are in flight. The slot is the caller's until
  // Post.
  virtual std::optional<uint32_t> Acquire() noexcept = 0;

  // The buffer for the request: request_bytes_max bytes, 64-byte aligned. Valid from Acquire to
  // Post.
  virtual std::span<std::byte> request(uint32_t slot) noexcept = 0;

  // Sends the first `bytes` of request(slot), at most request_bytes_max. The buffer is the fabric's
  // until the completion. OK says that the request was handed over, not that it arrived.
  //   status()'s error    the lane is down; nothing was sent, and the slot is free again.
  virtual absl::Status Post(uint32_t slot, uint32_t bytes) noexcept = 0;

  // Like Post, but a promise that another Post, PostLater or Poll follows at once. The fabric may
  // keep this request until then and hand over several in one system call.
  virtual absl::Status PostLater(uint32_t slot, uint32_t bytes) noexcept {
    return Post(slot, bytes);
  }

  // Asks for the body of the reply to this one request to be written to `body`; call between
  // Acquire and Post. It concerns a reply of exactly head_bytes + body.bytes() bytes: its first
  // head_bytes go to reply(slot), the rest to `body`. That saves the owner a copy. `body` is the
  // fabric's from Post to the completion or to Abandon. Its bytes are undefined unless landed() is
  // true. Returns false if this fabric cannot do it: then the whole reply comes to reply(slot).
  virtual bool Land(uint32_t /*slot*/, uint32_t /*head_bytes*/,
                    const ScatterList& /*body*/) noexcept {
    return false;
  }
  // Whether the body was written there. Ask between the completion and Release.
  virtual bool landed(uint32_t /*slot*/) const noexcept { return false; }

  // Fills `out` with finished slots, in order of arrival, and returns how many. A fabric may
  // deliver twice (fault_fabric does, a retransmitting one could). So compare the reply's request
  // id with the one awaited in that slot. Ignore a completion that does not match or is not
  // awaited: its slot is not yours to release (I1).
  virtual size_t Poll(std::span<Completion> out) noexcept = 0;

  // The reply; valid from its completion to Release. The peer wrote it, so trust nothing in it. On
  // shm the peer can still change it: copy the bytes that you check.
  virtual std::span<const std::byte> reply(uint32_t slot) const noexcept = 0;

  // Gives the slot back, after its completion or unused after Acquire.
  virtual void Release(uint32_t slot) noexcept = 0;

  // Gives up on a posted slot whose completion Poll has not returned. This cancels nothing: the
  // buffers stay the fabric's, and the slot is free once a Poll has met and swallowed the reply.
  virtual void Abandon(uint32_t slot) noexcept = 0;

  // The number of slots posted and not completed, abandoned ones included.
  virtual uint32_t in_flight() const noexcept = 0;

  // Takes the descriptor that came with the reply in `slot`. Call between the completion and
  // Release, which closes a descriptor that nobody took.
  //   NotFound            none came, or this process has no room for one more.
  //   Unimplemented       this fabric passes no descriptors (only shm and loopback do).
  virtual absl::StatusOr<UniqueFd> TakeDescriptor(uint32_t slot) noexcept;

  // Pins the buffers of all slots until the lane is destroyed, so that a device writes requests and
  // reads replies where they lie. Call it once, before the first Acquire. It takes long: it touches
  // every page, and the lane then costs all its memory. On loopback the ends share one memory. It
  // stays as it is if the holder pinned it, and stays pinned until both ends are destroyed.
  //   Unimplemented       this lane's memory cannot be pinned.
  //   else                as MemoryPinner::Pin.
  absl::Status PinSlots(std::shared_ptr<MemoryPinner> pinner);
  // kPinned after PinSlots, else kHost.
  RegionType slot_type() const noexcept { return slot_type_; }

 protected:
  virtual absl::Status DoPinSlots(std::shared_ptr<MemoryPinner> pinner);

 private:
  RegionType slot_type_ = RegionType::kHost;
};

// The holder's end.
class ServeLane : public Lane {
 public:
  // Fills `out` with requests that have come, in order of arrival, and returns how many. A slot
  // that arrived is the holder's until it posts the reply. A slot that the peer posts out of its
  // turn is not shown; it ends the lane. Requests that do not fit `out` wait for the next Poll.
  virtual size_t Poll(std::span<Arrival> out) noexcept = 0;

  // The request's bytes; valid from its arrival to the Post of its reply. Trust nothing in them.
  virtual std::span<const std::byte> request(uint32_t slot) const noexcept = 0;

  // The buffer for the reply: reply_bytes_max bytes, 64-byte aligned. Valid as long as
  // request(slot).
  virtual std::span<std::byte> reply(uint32_t slot) noexcept = 0;

  // kPinned if ListenOptions::slot_pinner pinned the buffers of all slots, else kHost.
  RegionType slot_type() const noexcept { return slot_type_; }

  // Sends the first `bytes` of reply(slot), at most reply_bytes_max, in one put. Answer every
  // arrival exactly once, in any order.
  //   status()'s error    the lane is down; the slot is done with all the same.
  virtual absl::Status Post(uint32_t slot, uint32_t bytes) noexcept = 0;

  // Like Post, for a reply whose body lies elsewhere, as rows lie in the store. The peer gets the
  // first `head_bytes` of reply(slot), then `runs` one after another. There are at most
  // kGatherRunCountMax runs, all in memory of one `type`, and reply_bytes_max bytes in all. A
  // fabric that can send memory from where it lies saves a copy; the default copies the runs behind
  // the head. The runs stay borrowed until gathering(slot) is false, the slot arrives again, or the
  // lane is destroyed.
  //   Unimplemented       kDmabuf: this lane does not send from there. verbs does once it has
  //                       registered the region, some time after the first such call, if the card
  //                       and the kernel take it. Nothing was posted, and the slot stays the
  //                       caller's: copy the rows to reply(slot) and Post.
  //   status()'s error    the lane is down; the slot is done with, and so are the runs.
  virtual absl::Status PostGather(uint32_t slot, uint32_t head_bytes,
                                  std::span<const std::span<const std::byte>> runs,
                                  RegionType type) noexcept;
  // Whether the fabric still reads the runs of the slot's last PostGather.
  virtual bool gathering(uint32_t /*slot*/) const noexcept { return false; }

  // Like Post, and passes a duplicate of `fd` to the peer beside the reply; see TakeDescriptor. The
  // slot stays the caller's if nothing was posted.
  //   Unimplemented       this fabric passes no descriptors (only shm and loopback do); nothing was
  //                       posted.
  //   ResourceExhausted   the descriptor could not be passed now (limits of the socket or the
  //                       system); nothing was posted.
  //   status()'s error    the lane is down; the slot is done with all the same.
  virtual absl::Status PostWithDescriptor(uint32_t slot, uint32_t bytes, int fd) noexcept;

 protected:
  // The refusal of a dmabuf by PostGather.
  absl::Status NoDmabuf() const;
  void set_slot_type(RegionType type) noexcept { slot_type_ = type; }

 private:
  RegionType slot_type_ = RegionType::kHost;
};

// The requester's half of a lane being brought up.
class Dialer {
 public:
  virtual ~Dialer() = default;

  // Opaque bytes for the holder's Invite, at most kOfferBytesMax.
  virtual const std::string& offer() const = 0;

  // Completes the lane with the holder's answer. Blocks until `deadline` at most; call once. Except
  // on loopback it waits for the holder's Accept, so Accept must run in another thread. Resolving a
  // host name in a tcp answer may take longer than `deadline`.
  //   InvalidArgument     the answer is malformed, or for a lane of another shape.
  //   Unavailable         nobody is there, or this fabric does not reach that peer: try another.
  //   PermissionDenied    the peer is another user (shm).
  //   DeadlineExceeded    `deadline` came first.
  virtual absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                               Instant deadline) = 0;
};

struct AcceptedLane {
  uint64_t tag;  // as given to Invite
  std::unique_ptr<ServeLane> lane;
};

// The holder's end of bring-up: the place where lanes arrive.
class Listener {
 public:
  virtual ~Listener() = default;

  virtual FabricKind kind() const noexcept = 0;

  // Expects one lane of `shape` for the peer that made `offer`, and returns the answer to send
  // back. Accept returns `tag` with the lane. The invitation expires at `deadline` if nobody takes
  // it. Thread-safe.
  //
  // `account` is an opaque name under which the device resources of the lane (verbs) are counted,
  // until the lane is destroyed. The caller must have authenticated it; do not take it from
  // `offer`, which the peer controls. The empty name is a valid account.
  //   InvalidArgument     the offer or the shape is malformed.
  //   Unavailable         this fabric cannot reach that peer (shm: another host).
  //   ResourceExhausted   kInvitationCountMax invitations are outstanding, there is no memory for
  //                       the slots, or a limit of the account or the device is reached.
  //   else                as MemoryPinner::Pin.
  virtual absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                             std::string_view account, uint64_t tag,
                                             Instant deadline) = 0;

  // Becomes readable when Accept may have something: a lane, or a stranger to drop.
  virtual int event_fd() const noexcept = 0;

  // Returns the next lane that came up, or nullopt. Never blocks. Drops strangers, wrong tokens and
  // connections still half-open after kHandshakeMax, and logs each once.
  virtual std::optional<AcceptedLane> Accept() = 0;
};

inline constexpr size_t kInvitationCountMax = 1024;
inline constexpr Duration kHandshakeMax = std::chrono::seconds(3);

struct ListenOptions {
  std::string tcp_address = "127.0.0.1:0";  // host:port; port 0 takes a free one
  // The host:port that answers tell peers to connect to; the peer resolves it. Port 0 stands for
  // the bound port. If empty, it is the bound address. It is required if the listener is bound to
  // every address (0.0.0.0, ::).
  std::string tcp_advertise;
  // The memory that the runs of PostGather lie in, for fabrics that must know it beforehand. verbs
  // registers it in segments, some time after each is first used, without any remote access. Runs
  // from elsewhere are copied. The memory must outlive the listener and its lanes. Destroying the
  // listener waits until no destroyed lane still has it registered.
  std::vector<MemoryRegion> gather_regions;
  // Pins the slots of every lane, so that a device reads requests and writes replies where they
  // lie. Invite pins them, on loopback the peer's Connect; a lane whose slots cannot be pinned is
  // refused there. It lives until the last lane is destroyed, on loopback at both ends. If null,
  // slots are host memory.
  std::shared_ptr<MemoryPinner> slot_pinner;
};

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual FabricKind kind() const noexcept = 0;

  // Opens a place where lanes arrive.
  //   InvalidArgument     the address does not parse.
  //   Unavailable         the address cannot be bound; the message says what to do.
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) = 0;

  // Begins a lane at the requester's end.
  //   InvalidArgument     the shape is not valid (ValidateLaneShape).
  virtual absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) = 0;
};

inline constexpr uint32_t kBusyPollUsMax = 10'000;

struct TcpOptions {
  // How many microseconds an empty poll of a lane looks at the network card's own queue instead of
  // waiting for its interrupt (SO_BUSY_POLL). It is for CPUs that spin anyway. Zero turns it off; a
  // value above kBusyPollUsMax is cut to it. It takes CAP_NET_ADMIN and a card whose driver
  // supports it, and does nothing on loopback. If the kernel refuses it, that is logged once and
  // the lanes work without it.
  uint32_t busy_poll_us = 0;
};

// The fabrics of this build (verbs: transport/verbs/verbs_fabric.h). `clock` must outlive them.
std::unique_ptr<Fabric> NewShmFabric(Clock* clock);
std::unique_ptr<Fabric> NewTcpFabric(Clock* clock);
std::unique_ptr<Fabric> NewTcpFabric(Clock* clock, const TcpOptions& options);
// Joins both ends in one process: for tests, and for a daemon that is holder and requester at once.
// Only ends made by one object find each other.
std::unique_ptr<Fabric> NewLoopbackFabric(Clock* clock);

// Identifies this host's kernel and network namespace. Two identities are equal iff shm can connect
// the processes. It travels in the session, so that peers on one host choose shm by themselves.
std::string HostIdentity();
// Returns how many of this host's processors this process may run on; 0 if that is not known.
uint32_t ProcessorCount();

}  // namespace ckv
