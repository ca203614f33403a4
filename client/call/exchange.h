// The requests of one call: stamps, posts and awaits them, and matches replies to requests.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/call/lane_wait.h"
#include "client/holders/counters.h"
#include "client/holders/link_table.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

// The part of every call that uses the lanes of its holders. Clear it, Add the links that the call
// uses, and Start. Then repeat: Post as many requests as there are slots, Collect the replies that
// arrived, and EndRound. GiveUp ends the call.
//
// A reply counts only if it carries the id of the request that waits in its slot (I1). Other
// replies are counted and dropped. A slot is in use from its Post to its Release.
//
// Belongs to one call context. Keeps its memory between calls.
class Exchange {
 public:
  // All must outlive the exchange.
  Exchange(Clock* clock, Duration spin_max, LinkTable* links, CallCounters* counters);

  // Drops the links of the last call.
  void Clear() { peer_count_ = 0; }
  // Adds a link of this call, or finds it. Returns its ordinal from 0, the peer index. The
  // link must be up before Start.
  uint32_t Add(HolderLink& link);
  size_t peer_count() const { return peer_count_; }
  HolderLink& link(uint32_t peer_index) const { return *peers_[peer_index].link; }
  // Starts the call. All links must have been added and be up. Every wait ends at `deadline`. Links
  // silent at that time are avoided for a while, unless the call `may_be_refused`: it waits for
  // less time than a holder may need.
  void Start(Instant deadline, bool may_be_refused = false);

  enum class Send : uint8_t { kNow, kWithNext };  // RequestLane::Post, PostLater
  // Sends a request from a slot that the caller acquired and filled, with the body after the
  // header. Writes the header into the slot and sets its id, session, epoch and remaining time. The
  // reply has the same `tag`.
  //   As LinkTable::Fail if the lane broke.
  absl::Status Post(uint32_t peer_index, uint32_t slot, const RequestHeader& header, uint32_t tag,
                    Instant now, Send send = Send::kNow);

  struct Reply {
    uint32_t peer_index = 0;
    uint32_t slot = 0;
    uint32_t tag = 0;
    Instant posted;
    ReplyHeader header;                // its id matches; no other field has been checked
    std::span<const std::byte> bytes;  // header and body, in the slot until Release
  };
  using Accept = absl::FunctionRef<absl::Status(const Reply&)>;
  // Takes the replies that have arrived and passes each awaited one to `accept` once. Returns true
  // if any arrived. Before it returns an error, it takes all replies that arrived on that lane.
  //   DataLoss            a reply's header is malformed: the lane is closed.
  //   As LinkTable::Fail if `accept` fails.
  absl::StatusOr<bool> Collect(Accept accept);

  // Takes and drops all replies that have arrived: the deadline has passed, and the call waited for
  // something else.
  //   DeadlineExceeded    all replies are there. If not, Check names the silent holders.
  absl::Status ReadLate();

  // The two parts of EndRound without progress, for calls that do not always wait. Check examines
  // the lanes and the clock. Pause waits, and must follow a Check.
  //   As EndRound.
  absl::Status Check();
  absl::Status Pause();
  // Ends a round. If the round made no progress, waits until a lane may have a reply. If replicas
  // can answer everything that is awaited, holders may be silent for half of the remaining time, or
  // for kQuietMax without a deadline.
  //   DeadlineExceeded    names the holders that did not answer. They are avoided from now on.
  //   Otherwise as LinkTable::Fail, if a lane with an outstanding reply broke.
  absl::Status EndRound(bool progress);

  // For a call whose holders may be late. OthersMayAnswer returns whether replies are awaited, and
  // replicas can give all of them. AvoidAwaited makes later calls avoid the holders of these
  // replies until they answer. Pause returns at `wake` at the latest, until the next Start.
  bool OthersMayAnswer();
  void AvoidAwaited();
  void set_wake(Instant wake) { wake_ = wake; }
  // When Check last read the clock.
  Instant checked_at() const { return checked_at_; }

  // Frees the slot. Its reply must have been read.
  void Release(uint32_t peer_index, uint32_t slot);
  // Ends the call. Releases received replies and abandons outstanding ones. Closes every lane that
  // carried an unexpected reply, because it is no longer certain which of its slots are done.
  void GiveUp();

  static constexpr Duration kQuietMax = std::chrono::seconds(10);

  uint32_t outstanding(uint32_t peer_index) const { return peers_[peer_index].outstanding; }
  // The lanes on which the last Check found outstanding replies.
  std::span<RequestLane* const> waiting() const { return waiting_; }

 private:
  enum class State : uint8_t { kFree, kPosted, kArrived };
  struct Slot {
    State state = State::kFree;
    uint32_t tag = 0;
    uint64_t request_id = 0;
    Instant posted;
  };
  // One link of the call.
  struct Peer {
    HolderLink* link = nullptr;
    std::vector<Slot> slots;
    uint32_t outstanding = 0;
    bool strange = false;  // a reply arrived that its slot did not await
    bool damaged = false;  // a reply arrived whose bytes are wrong
    bool held = false;     // a request may wait for the next post or poll
  };

  std::span<Peer> peers() { return {peers_.data(), peer_count_}; }
  // Whether replies to this call are outstanding.
  bool AwaitsAny();
  // Returns true if a reply may still arrive, even to a request that an earlier call abandoned.
  static bool Awaited(const Peer& peer) {
    return peer.outstanding > 0 || peer.link->lane().in_flight() > 0;
  }
  absl::StatusOr<bool> CollectFrom(uint32_t peer_index, Accept accept);
  absl::Status Take(uint32_t peer_index, const Completion& done, Accept accept);
  absl::Status Silence(const absl::Status& status);
  // Whether all awaited holders have been silent for half of the time, and replicas may answer.
  bool OthersShouldBeTried(Instant now);

  Clock* const clock_;
  LinkTable* const links_;
  CallCounters* const counters_;
  LaneWait wait_;
  Instant deadline_, wake_ = kInstantMax, checked_at_;
  bool may_be_refused_ = false;
  Instant quiet_since_;      // when a Check last found `heard_` set
  bool heard_ = false;       // whether a reply arrived or an idle holder was sent a request since
                             // then
  std::vector<Peer> peers_;  // the first peer_count_ are in use; the rest keep their memory
  size_t peer_count_ = 0;
  std::vector<Completion> completions_;
  std::vector<RequestLane*> waiting_;
};

}  // namespace ckv
