// How bytes move between a requester thread and a holder thread: fabrics, lanes, slots.
//
// A lane is one ordered channel with a fixed ring of slots. A slot is two buffers: one for a
// request, one for its reply. The slots are the only flow control. A requester without a free slot
// may not post, so its credits are its free slots. A holder replies only into the slot of the
// request. Nothing is allocated or resized after a lane is up. No queue can overflow, because a
// slot travels in one direction at a time.
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
//      read(lane.reply(*slot).first(done.bytes));    // untrusted: wire.h decodes it
//      lane.Release(*slot);
//
// and the holder's end:
//
//      std::array<Arrival, 16> arrivals;
//      while (lane.status().ok()) {                  // until the requester disconnects
//        const size_t count = lane.Poll(arrivals);
//        for (const Arrival& one : std::span(arrivals).first(count)) {
//          const uint32_t bytes = answer(lane.request(one.slot).first(one.bytes),
//                                        lane.reply(one.slot));
//          if (!lane.Post(one.slot, bytes).ok()) break;
//        }
//        if (count == 0) sleep, as in "Waiting" below
//      }
//
// On loopback and shm both ends share one memory: the holder's request(slot) and reply(slot) are
// the requester's, and nothing is copied. tcp keeps a copy at each end, and the kernel moves the
// bytes. verbs (transport/verbs/verbs_fabric.h) SENDs requests into posted receives. It sends
// replies by RDMA WRITE WITH IMMEDIATE into the landing slots. So the holder starts every RDMA
// transfer, and no memory key of its store leaves the process.
//
// Some methods are optional. Every fabric accepts the call, but only some do more than the default:
//
//                                       loopback   shm   tcp   verbs   elsewhere
//      PostLater                        -          -     yes   -       is Post
//      Land, landed                     -          -     yes   -       Land returns false
//      PostGather, gathering            -          -     yes   yes     copies the spans
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
// Waiting: spin on Poll while a reply is due soon, then sleep. Never sleep without Arm. Check
// status() whenever Poll returns nothing, because Poll on a lane that is down returns nothing
// forever. At the deadline, abandon the posted slot:
//
//      while (lane.Poll({&done, 1}) == 0 || done.slot != *slot) {
//        if (!lane.status().ok()) return lane.status();
//        if (clock->Now() >= deadline) {
//          lane.Abandon(*slot);                      // the lane frees it when the reply arrives
//          return absl::DeadlineExceededError("no reply in time");
//        }
//        if (still_spinning || !lane.Arm()) continue;
//        poll(lane.event_fd(), until the deadline);
//        lane.Disarm();
//      }
//
// Poll also sends: bytes that the kernel did not accept at Post are sent by later Polls. So an end
// that has posted must keep polling, or sleep on its event_fd. A holder that destroys its lane
// right after Post may lose the reply. It must poll until status() reports that the requester is
// gone.
//
// Threads: at each end, a lane belongs to one thread at a time. The owner of lanes claims a
// ThreadRole over them (BelongTo). To hand a lane to another thread, order the two by other means
// (a queue, a mutex). Fabric and Listener::Invite are thread-safe. Listener::Accept belongs to the
// accepting thread.
//
// Lifetimes: a fabric must outlive its listeners and dialers. A lane needs neither fabric nor
// listener and may outlive both, but not the clock. Destroying a lane does not wait for the peer.
//
// tests/consumer/fabric_example.cc is a complete program: bring-up, one request, its reply.

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

// Returns whether both ends of the fabric's lanes share one memory, so that no bytes are sent.
constexpr bool SharesMemory(FabricKind kind) {
  return kind == FabricKind::kShm || kind == FabricKind::kLoopback;
}

inline constexpr uint32_t kSlotCountMax = 256;
inline constexpr uint32_t kSlotBytesMax = 64u << 20;
inline constexpr uint64_t kLaneBytesMax = 4ull << 30;  // all slots, both buffers
inline constexpr size_t kOfferBytesMax = 4096;         // Dialer::offer
inline constexpr size_t kGatherRunCountMax = 16;       // ServeLane::PostGather

// The size of a lane: agreed on in the session, equal at both ends, and fixed for the lane's
// lifetime.
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
  // The bytes of request(slot) that the peer wrote: at most request_bytes_max. Their content is
  // untrusted.
  uint32_t bytes;
};
struct Completion {
  uint32_t slot;
  // The bytes of reply(slot) that the peer wrote: at most reply_bytes_max. Their content is
  // untrusted.
  uint32_t bytes;
};

// The part that both ends of a lane have in common.
//
// An error that the peer can cause is a status. An error that only our own code can cause ends the
// process (CKV_CHECK). Examples are using a slot that the other end owns, and a Post beyond its
// buffer.
//
// When a lane goes down, the fate of a posted request is unknown. The holder may have received it,
// and its reply may have been in transit. Further Polls deliver the replies that had already
// arrived. The other requests never complete. Their slots stay posted, and in_flight counts them,
// until the lane is destroyed; that frees everything. A requester that finds status() down must
// give up every request it still awaits. It may post them again on another lane. A holder drops the
// requests it has not answered.
class Lane {
 public:
  virtual ~Lane() = default;

  virtual FabricKind kind() const noexcept = 0;
  virtual const LaneShape& shape() const noexcept = 0;

  // OK while the lane is up. A lane that is down stays down: every later Post fails, Poll returns
  // nothing new, and the owner destroys the lane. Buffers stay readable until then. Messages that
  // the peer sent before it disconnected are delivered first. Polling detects a peer's death within
  // about 256 empty polls (shm then checks its socket), or at the first poll after a sleep.
  //   Unavailable         the peer disconnected or the connection broke.
  //   InvalidArgument     the peer broke the lane's rules (slot out of range or not its own, too
  //                       many bytes, a damaged ring); its end gets Unavailable.
  virtual absl::Status status() const = 0;

  // The descriptor to sleep on. It becomes readable when something arrives after Arm returned true,
  // or when the peer disconnects. Wake-ups may be spurious. The lane owns the descriptor; call
  // event_fd before each sleep.
  virtual int event_fd() const noexcept = 0;
  // Prepares for a sleep. Returns false, and arms nothing, if something has already arrived or the
  // lane is down: then poll. On shm the peer's Post makes no system call while this end is not
  // armed.
  virtual bool Arm() noexcept = 0;
  // Undoes Arm. Call it after waking, before polling.
  virtual void Disarm() noexcept = 0;

  // Sets the role of the lane's owner, which must outlive the lane. In debug builds
  // (CKV_CHECK_THREADS) a Post or Poll by a thread without that role ends the process. If the role
  // is null (the default), nothing is checked.
  void BelongTo(const ThreadRole* role) noexcept { owner_ = role; }

 protected:
  // Each fabric calls this in Acquire, Post and Poll.
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
  // Takes a free slot, or returns nullopt if all are in flight. The caller owns the slot until
  // Post.
  virtual std::optional<uint32_t> Acquire() noexcept = 0;

  // The buffer for the request: request_bytes_max bytes, 64-byte aligned. Valid from Acquire to
  // Post.
  virtual std::span<std::byte> request(uint32_t slot) noexcept = 0;

  // Sends the first `bytes` of request(slot), at most request_bytes_max. The fabric owns the buffer
  // until the completion. OK means that the request was handed over, not that it arrived.
  //   status()'s error    the lane is down; nothing was sent, and the slot is free again.
  virtual absl::Status Post(uint32_t slot, uint32_t bytes) noexcept = 0;

  // Like Post, but the caller promises to call Post, PostLater or Poll right afterwards. The fabric
  // may keep this request until then and hand over several in one system call.
  virtual absl::Status PostLater(uint32_t slot, uint32_t bytes) noexcept {
    return Post(slot, bytes);
  }

  // Requests that the body of the reply to this one request be written to `body`, which saves the
  // owner a copy. Call it between Acquire and Post. It applies only to a reply of exactly
  // head_bytes + body.bytes() bytes. The first head_bytes of that reply are written to reply(slot),
  // the rest to `body`. The fabric owns `body` from Post to the completion or to Abandon. The bytes
  // of `body` are undefined unless landed() is true. Returns false if this fabric cannot do it:
  // then the whole reply is in reply(slot).
  virtual bool Land(uint32_t /*slot*/, uint32_t /*head_bytes*/,
                    const ScatterList& /*body*/) noexcept {
    return false;
  }
  // Returns whether the body was written to Land's `body`. Call it between the completion and
  // Release.
  virtual bool landed(uint32_t /*slot*/) const noexcept { return false; }

  // Fills `out` with completed slots, in order of arrival, and returns how many. A fabric may
  // deliver a completion twice (fault_fabric does, a retransmitting one could). So compare the
  // reply's request id with the one awaited in that slot. Ignore a completion that does not match
  // or is not awaited: its slot is not yours to release (I1).
  virtual size_t Poll(std::span<Completion> out) noexcept = 0;

  // The reply; valid from its completion to Release. The peer wrote it, so its content is
  // untrusted. On shm the peer can still change it: copy the bytes before you check them.
  virtual std::span<const std::byte> reply(uint32_t slot) const noexcept = 0;

  // Returns the slot, after its completion or unused after Acquire.
  virtual void Release(uint32_t slot) noexcept = 0;

  // Gives up on a posted slot whose completion Poll has not returned. This cancels nothing: the
  // fabric still owns the buffers. The slot is free after a Poll has received and discarded the
  // reply.
  virtual void Abandon(uint32_t slot) noexcept = 0;

  // The number of slots posted and not completed, including abandoned ones.
  virtual uint32_t in_flight() const noexcept = 0;

  // Takes the descriptor that arrived with the reply in `slot`. Call it between the completion and
  // Release, which closes a descriptor that was not taken.
  //   NotFound            no descriptor arrived, or this process is at its limit of open
  //                       descriptors.
  //   Unimplemented       this fabric passes no descriptors (only shm and loopback do).
  virtual absl::StatusOr<UniqueFd> TakeDescriptor(uint32_t slot) noexcept;

  // Pins the buffers of all slots until the lane is destroyed, so that a device can write requests
  // and read replies in place. Call it once, before the first Acquire. It is slow: it touches every
  // page, and the lane then occupies all its memory. On loopback the ends share one memory, which
  // stays as it is if the holder has pinned it. There it stays pinned until both ends are
  // destroyed.
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
  // Fills `out` with requests that have arrived, in order of arrival, and returns how many. The
  // holder owns an arrived slot until it posts the reply. If the peer posts a slot that it does not
  // own, the slot is not returned and the lane goes down. Requests that do not fit in `out` wait
  // for the next Poll.
  virtual size_t Poll(std::span<Arrival> out) noexcept = 0;

  // The request's bytes; valid from its arrival to the Post of its reply. Their content is
  // untrusted.
  virtual std::span<const std::byte> request(uint32_t slot) const noexcept = 0;

  // The buffer for the reply: reply_bytes_max bytes, 64-byte aligned. Valid as long as
  // request(slot).
  virtual std::span<std::byte> reply(uint32_t slot) noexcept = 0;

  // kPinned if ListenOptions::slot_pinner pinned the buffers of all slots, else kHost.
  RegionType slot_type() const noexcept { return slot_type_; }

  // Sends the first `bytes` of reply(slot), at most reply_bytes_max, in one put. Answer every
  // arrival exactly once, in any order.
  //   status()'s error    the lane is down; the caller no longer owns the slot.
  virtual absl::Status Post(uint32_t slot, uint32_t bytes) noexcept = 0;

  // Like Post, for a reply whose body is stored elsewhere, for example rows in the store. The peer
  // receives the first `head_bytes` of reply(slot), then the spans in `runs` in order. There are at
  // most kGatherRunCountMax spans, all in memory of one `type`, and the reply has at most
  // reply_bytes_max bytes in all. A fabric that can send memory in place saves a copy; the default
  // copies the spans behind the head. The spans stay borrowed until gathering(slot) is false, the
  // slot arrives again, or the lane is destroyed.
  //   Unimplemented       kDmabuf: this lane cannot send from that memory. verbs can once it has
  //                       registered the region, some time after the first attempt, if the card and
  //                       the kernel support it. Nothing was posted, and the caller still owns the
  //                       slot: copy the rows to reply(slot) and Post.
  //   status()'s error    the lane is down; the caller no longer owns the slot, and `runs` are no
  //                       longer borrowed.
  virtual absl::Status PostGather(uint32_t slot, uint32_t head_bytes,
                                  std::span<const std::span<const std::byte>> runs,
                                  RegionType type) noexcept;
  // Returns whether the fabric still reads the spans of the slot's last PostGather.
  virtual bool gathering(uint32_t /*slot*/) const noexcept { return false; }

  // Like Post, and also passes a duplicate of `fd` to the peer; see TakeDescriptor. If nothing was
  // posted, the caller still owns the slot.
  //   Unimplemented       this fabric passes no descriptors (only shm and loopback do); nothing was
  //                       posted.
  //   ResourceExhausted   the descriptor could not be passed now (limits of the socket or the
  //                       system); nothing was posted.
  //   status()'s error    the lane is down; the caller no longer owns the slot.
  virtual absl::Status PostWithDescriptor(uint32_t slot, uint32_t bytes, int fd) noexcept;

 protected:
  // The error with which PostGather refuses a dmabuf.
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
  //   Unavailable         nothing listens there, or this fabric cannot reach that peer: try another
  //                       fabric.
  //   PermissionDenied    the peer is another user (shm).
  //   DeadlineExceeded    `deadline` passed first.
  virtual absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                               Instant deadline) = 0;
};

struct AcceptedLane {
  uint64_t tag;  // as given to Invite
  std::unique_ptr<ServeLane> lane;
};

// The holder's end of bring-up: accepts lanes.
class Listener {
 public:
  virtual ~Listener() = default;

  virtual FabricKind kind() const noexcept = 0;

  // Expects one lane of `shape` for the peer that made `offer`, and returns the answer to send to
  // it. Accept returns `tag` with the lane. If no peer connects, the invitation expires at
  // `deadline`. Thread-safe.
  //
  // `account` is an opaque name under which the lane's device resources (verbs) are counted, until
  // the lane is destroyed. The caller must have authenticated it; do not take it from `offer`,
  // which the peer controls. The empty name is a valid account.
  //   InvalidArgument     the offer or the shape is malformed.
  //   Unavailable         this fabric cannot reach that peer (shm: another host).
  //   ResourceExhausted   kInvitationCountMax invitations are outstanding, there is no memory for
  //                       the slots, or a limit of the account or the device is reached.
  //   else                as MemoryPinner::Pin.
  virtual absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                             std::string_view account, uint64_t tag,
                                             Instant deadline) = 0;

  // Becomes readable when Accept may have something to do: a lane to return, or an unknown
  // connection to drop.
  virtual int event_fd() const noexcept = 0;

  // Returns the next lane that is up, or nullopt. Never blocks. Drops unknown connections, those
  // with a wrong token, and those still half-open after kHandshakeMax, and logs each once.
  virtual std::optional<AcceptedLane> Accept() = 0;
};

inline constexpr size_t kInvitationCountMax = 1024;
inline constexpr Duration kHandshakeMax = std::chrono::seconds(3);

struct ListenOptions {
  std::string tcp_address = "127.0.0.1:0";  // host:port; port 0 takes a free one
  // The host:port in answers, to which peers connect; the peer resolves it. Port 0 means the bound
  // port. If empty, the bound address is used. Required if the listener is bound to every address
  // (0.0.0.0, ::).
  std::string tcp_advertise;
  // The memory that contains the spans of PostGather, for fabrics that need it in advance. verbs
  // registers it in segments, each some time after its first use, without any remote access. Spans
  // outside of it are copied. The memory must outlive the listener and its lanes. Destroying the
  // listener waits until every destroyed lane has released its registrations of the memory.
  std::vector<MemoryRegion> gather_regions;
  // Pins the slots of every lane, so that a device can read requests and write replies in place.
  // Invite pins them, or on loopback the peer's Connect; that call fails for a lane whose slots
  // cannot be pinned. The lanes keep the pinner until the last one is destroyed, on loopback at
  // both ends. If null, slots are host memory.
  std::shared_ptr<MemoryPinner> slot_pinner;
};

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual FabricKind kind() const noexcept = 0;

  // Starts to listen for lanes.
  //   InvalidArgument     the address does not parse.
  //   Unavailable         the address cannot be bound; the message says what to do.
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) = 0;

  // Begins a lane at the requester's end.
  //   InvalidArgument     the shape is not valid (ValidateLaneShape).
  virtual absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) = 0;
};

inline constexpr uint32_t kBusyPollUsMax = 10'000;

struct TcpOptions {
  // How many microseconds an empty poll of a lane checks the network card's own queue instead of
  // waiting for its interrupt (SO_BUSY_POLL). Meant for CPUs that spin anyway. Zero turns it off; a
  // value above kBusyPollUsMax is reduced to it. Needs CAP_NET_ADMIN and a card whose driver
  // supports it; has no effect on loopback. If the kernel refuses it, that is logged once and the
  // lanes work without it.
  uint32_t busy_poll_us = 0;
};

// The fabrics of this build (verbs: transport/verbs/verbs_fabric.h). `clock` must outlive them.
std::unique_ptr<Fabric> NewShmFabric(Clock* clock);
std::unique_ptr<Fabric> NewTcpFabric(Clock* clock);
std::unique_ptr<Fabric> NewTcpFabric(Clock* clock, const TcpOptions& options);
// Connects two ends in one process: for tests, and for a daemon that is both holder and requester.
// Only ends made by one object can connect to each other.
std::unique_ptr<Fabric> NewLoopbackFabric(Clock* clock);

// Identifies this host's kernel and network namespace. Two identities are equal iff shm can connect
// the processes. The identity is sent in the session, so that peers on one host choose shm
// automatically.
std::string HostIdentity();
// Returns how many of this host's processors this process may run on; 0 if that is unknown.
uint32_t ProcessorCount();

}  // namespace ckv
