// The state of each holder that all calls of a requester share: its control connection, its
// constants, and whether it is avoided.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "attention/backend.h"
#include "client/decide/cost_model.h"
#include "client/decide/profile.h"
#include "client/decide/profile_seed.h"
#include "client/holders/control.h"
#include "client/holders/directory_view.h"
#include "client/holders/holder_view.h"
#include "client/learn/live_model.h"
#include "proto/ids.h"

namespace ckv {

// Tells a waiting thread that the constants of some holder are doubted. Thread-safe.
class DoubtBell {
 public:
  // Called once for each doubt, and not for each reply.
  void Ring() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    rung_ = true;
  }
  // Waits until it was rung since the last Await, or until `until`.
  void Await(Clock& clock, Instant until) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    clock.Await(mu_, absl::Condition(&rung_), until);
    rung_ = false;
  }

 private:
  absl::Mutex mu_;
  bool rung_ ABSL_GUARDED_BY(mu_) = false;
};

// The rows over which a holder's kernel was measured, to measure it again over the same.
struct MeasuredOver {
  std::weak_ptr<const Corpus> corpus;
  uint32_t chunk = 0;  // ordinal in the corpus
};

// The fabric chosen for a holder, and why.
struct FabricChoice {
  uint64_t ordinal = 0;  // counts the peer's choices, from 1
  FabricKind fabric = FabricKind::kTcp;
  Epoch epoch;  // the holder's epoch when it was probed
  Instant made;
  std::vector<FabricTrial> trials;
  std::string fallback;                    // as in HolderView
  std::vector<FabricKind> holder_fabrics;  // all that the holder told
};

// One holder. Thread-safe. It lives as long as its table.
class HolderPeer {
 public:
  // `seed` and `bell` must outlive it. Both may be null.
  explicit HolderPeer(HolderId id, const SeedProfile* seed = nullptr, DoubtBell* bell = nullptr)
      : fabric(&in_flight), model(id, seed), bell_(bell), id_(std::move(id)) {}

  const HolderId& id() const { return id_; }
  // Returns "holder h0 (127.0.0.1:7401)", for errors.
  std::string Describe() const ABSL_LOCKS_EXCLUDED(mu_);
  HolderView View() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true if the directory did not list it at the last PeerTable::Refresh.
  bool gone() const ABSL_LOCKS_EXCLUDED(mu_);

  // The measured constants of its kernel over rows of these widths. Explain sets them; they are
  // unset before.
  std::optional<ComputeConstants> compute(const RowWidths& widths) const ABSL_LOCKS_EXCLUDED(mu_);
  void set_compute(const RowWidths& widths, const ComputeConstants& compute, MeasuredOver over)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns what to measure anew, one for each widths. It is all if `fabric` is doubted, else those
  // whose kernel constants are.
  std::vector<MeasuredOver> Doubted() const ABSL_LOCKS_EXCLUDED(mu_);

  // Constants for the cost model. The requester's profile adds its constants for this holder, over
  // the fabric of its last lane. It adds none if the profile is not for `geometry`.
  //   FabricFor       T_probe and BW from live probes and requests, or the profile's before any.
  //                   The pull bandwidth is that of pulls that ended, or the profile's before any.
  //   ComputeFor      the profile's curve, or the measured constants if it has none, times the
  //                   current slowdown of the kernel.
  //   WireShareFor    the profile's, or 0 without one.
  //   SpliceShareFor  the profile's, or 1 without one.
  std::optional<FabricConstants> FabricFor(const Geometry& geometry) const;
  double WireShareFor(const Geometry& geometry) const;
  double SpliceShareFor(const Geometry& geometry) const;
  ComputeConstants ComputeFor(const Geometry& geometry) const ABSL_LOCKS_EXCLUDED(mu_);
  // Passes an answer to LiveModel::Observe, and returns the kernel time that was expected of it, or
  // 0. An answer over a fabric that is no longer the chosen one is ignored.
  double ObserveAttend(const AnsweredFrame& frame) {
    if (frame.fabric != fabric_kind.load(std::memory_order_relaxed)) return 0;
    const LiveModel::Learned learned = model.Observe(frame);
    if (learned.doubted_now) Doubt();
    return learned.expected_us;
  }
  // Passes a round trip to LiveFabric::Observe.
  void ObserveLane(uint64_t bytes, double us) {
    if (fabric.Observe(bytes, us)) Doubt();
  }
  // Doubts its constants, though no reply disagrees with them: nobody asks it.
  void DoubtUnasked(const RowWidths& widths) {
    if (model.Doubt(widths)) Doubt();
  }
  // Says that its constants are to be measured anew. At most once for each doubt: takes a lock.
  void Doubt() {
    if (bell_ != nullptr) bell_->Ring();
  }

  // Takes what the directory told of it: its kernel target, even before anything is connected. News
  // of an earlier epoch than was heard are ignored. Returns true if the target is another now.
  bool Hear(const Member& member) ABSL_LOCKS_EXCLUDED(mu_);
  // The latest epoch that Hear was told.
  Epoch heard_epoch() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the last choice. Its ordinal is 0 before the first.
  FabricChoice choice() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until no other call is choosing, and takes the turn to choose. If it returns true, call
  // EndChoice. Returns false if another call has made a later choice than number `seen` meanwhile.
  //   DeadlineExceeded    another call was still choosing.
  absl::StatusOr<bool> BeginChoice(Clock& clock, uint64_t seen, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the turn. If `made` is unset, no fabric was found, and the last choice stays.
  void EndChoice(std::optional<FabricChoice> made) ABSL_LOCKS_EXCLUDED(mu_);

  // Requests posted to it and not answered, over all calls. Every request writes it, so it has its
  // own cache line.
  alignas(64) BusyPeriod in_flight;
  alignas(64) LiveFabric fabric;
  LivePull pull;
  RatioHistogram pull_ratios;  // slices against the constants known before each
  LiveModel model;
  std::atomic<int64_t> probed_ns{0};  // when `fabric` was last set by a probe
  // Lanes that call contexts have open. A context finds a broken lane only when it next uses it.
  std::atomic<uint32_t> lane_count{0};
  // True if a lane was found broken and none came up since. The others are then broken too.
  std::atomic<bool> lane_broke{false};
  std::atomic<uint64_t> lane_epoch{0};  // the session's epoch of the last lane that came up
  // The holder's latest epoch that a session or the directory told. Sessions of earlier epochs are
  // dropped before they are used.
  std::atomic<uint64_t> epoch{0};
  std::atomic<FabricKind> fabric_kind{FabricKind::kTcp};  // the last lane's that came up

  // Its host, as it told when a session opened.
  HostSeat seat() const { return seat_.load(std::memory_order_relaxed); }

  // Takes the queueing time that a reply told.
  void TellQueue(uint32_t ns, Instant now) {
    queue_ns_.store(ns, std::memory_order_relaxed);
    queue_told_ns_.store(now.ns, std::memory_order_relaxed);
  }
  // Returns the queueing time in microseconds, as the last reply told it. After kQueueAgeMax it
  // says nothing of now: a holder that is not asked tells no other.
  double QueueUs(Instant now) const {
    const Instant told = {queue_told_ns_.load(std::memory_order_relaxed)};
    return now - told > kQueueAgeMax ? 0 : queue_ns_.load(std::memory_order_relaxed) / 1e3;
  }
  static constexpr Duration kQueueAgeMax = std::chrono::seconds(1);
  // How long ago it last answered an attend; forever if it never did.
  Duration SilentFor(Instant now) const {
    return now - Instant{queue_told_ns_.load(std::memory_order_relaxed)};
  }

  // Notes that it was not reached, or that a session opened.
  void NoteReach(std::optional<Instant> failed) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns true if it failed a call lately. A replica is then asked instead, if there is one
  // (PeerTable::Avoid).
  bool avoided(Instant now) const { return avoided_until() > now; }
  Instant avoided_until() const { return {avoid_until_ns_.load(std::memory_order_relaxed)}; }
  // Call when it answered. Ends its avoidance.
  void Answered() {
    if (failure_count_.load(std::memory_order_relaxed) == 0) return;
    failure_count_.store(0, std::memory_order_relaxed);
    avoid_until_ns_.store(0, std::memory_order_relaxed);
  }

 private:
  friend class PeerTable;

  const LaneProfile* SeedOf(const Geometry& geometry) const;

  std::atomic<HostSeat> seat_{HostSeat{}};
  static_assert(std::atomic<HostSeat>::is_always_lock_free);
  std::atomic<uint32_t> queue_ns_{0};
  std::atomic<int64_t> queue_told_ns_{0};
  std::atomic<int64_t> avoid_until_ns_{0};
  std::atomic<uint32_t> failure_count_{0};  // since it last answered
  DoubtBell* const bell_;

  const HolderId id_;
  mutable absl::Mutex mu_;
  Member member_ ABSL_GUARDED_BY(mu_);  // the one that control_ was connected to
  Epoch heard_epoch_ ABSL_GUARDED_BY(mu_);
  // Shared, because a call may still use the connection that an address change replaces.
  std::shared_ptr<HolderControl> control_ ABSL_GUARDED_BY(mu_);
  bool suspect_ ABSL_GUARDED_BY(mu_) = false;  // ask the directory before the next connection
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  // As in HolderView, and the life that the tries were made for.
  std::optional<Instant> unreached_at_ ABSL_GUARDED_BY(mu_), unreached_since_ ABSL_GUARDED_BY(mu_);
  Epoch unreached_epoch_ ABSL_GUARDED_BY(mu_);
  // The measured constants of some widths: LiveModel::kWidthsMax at most.
  struct Measured {
    RowWidths widths;
    ComputeConstants compute;
    MeasuredOver over;
  };
  std::vector<Measured> measured_ ABSL_GUARDED_BY(mu_);
  FabricChoice choice_ ABSL_GUARDED_BY(mu_);
  bool choosing_ ABSL_GUARDED_BY(mu_) = false;
};

// Returns "holder h0 (127.0.0.1:7401), holder h1 (127.0.0.1:7402) and 3 more", for an error that
// names the holders that did not answer. Each is named once.
std::string DescribePeers(std::span<const HolderPeer* const> peers);

// Every holder that was ever asked. Thread-safe.
class PeerTable {
 public:
  static constexpr size_t kPeerCountMax = 2 * size_t{kMemberCountMax};

  // `view` and `factory` must outlive the table. `profile` seeds the constants of the holders that
  // it names, if it was measured with the kernels of `backend`. It may be null.
  PeerTable(DirectoryView* view, HolderControlFactory* factory,
            std::shared_ptr<const Profile> profile = nullptr,
            const Backend& backend = *Backend::Cpu());

  // The profile, for the geometries and the host it applies to.
  const SeedProfile& seed() const { return seed_; }
  // Counts the link tables that use it, from 0.
  uint32_t NextTable() { return table_count_.fetch_add(1, std::memory_order_relaxed); }

  // Returns the holder of this id, and adds it if it is new. Never touches the network. Its kernel
  // target is known from then on if its member is. The pointer stays valid as long as the table.
  //   ResourceExhausted   the table has kPeerCountMax holders.
  absl::StatusOr<HolderPeer*> Find(const HolderId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the control connection to the holder. Asks the directory for its address if it is not
  // known.
  //   Unavailable         the holder is not registered, or the directory does not answer.
  absl::StatusOr<std::shared_ptr<HolderControl>> Connect(HolderPeer& peer, Instant deadline);

  // Call when the holder did not answer. The next Connect asks the directory for its address.
  void Suspect(HolderPeer& peer);

  // Call when the directory says that this member is up. Its kernel target is known from then on.
  // If it was asked before, in an earlier epoch, its control connection is replaced. Its earlier
  // sessions are no longer used.
  void Learn(const Member& member) ABSL_LOCKS_EXCLUDED(mu_);

  // Call when a session with the holder opened. An epoch that the directory has not told yet is
  // another life, whose kernel target may be another: asks the directory, up to `deadline`. Until
  // it answers, the target is unknown.
  void Meet(HolderPeer& peer, Epoch epoch, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Tells the holders what the view has heard of members, for whatever reason it was asked. Call it
  // before reading model.target(). Takes two loads if there is no news.
  void Hear() ABSL_LOCKS_EXCLUDED(mu_);
  // Rises when the target of any holder becomes known or changes. A choice by targets made at a
  // lower count is made again.
  uint64_t target_count() const { return target_count_.load(std::memory_order_acquire); }

  // Call when a session with the holder opened. Holders whose hosts have one identity have seats of
  // one host. Beyond kHostCountMax hosts, nothing is known of them.
  void NoteHost(HolderPeer& peer, const HostFacts& host) ABSL_LOCKS_EXCLUDED(mu_);

  // Call when a call to the holder failed. Its replicas, if it has any, are asked instead for
  // `pause`, which may be the holder's own hint. If unset, the pause is kAvoidMin, doubled with
  // each failure since it last answered. No pause is longer than kAvoidMax.
  void Avoid(HolderPeer& peer, Instant now, std::optional<Duration> pause);
  static constexpr Duration kAvoidMin = std::chrono::seconds(1);
  static constexpr Duration kAvoidMax = std::chrono::seconds(30);
  // Rises with every Avoid. A choice among replicas made at a lower count is made again.
  uint64_t avoid_count() const { return avoid_count_.load(std::memory_order_relaxed); }

  // Asks the directory which holders are members now. If it does not answer, nothing changes: an
  // absent directory says nothing against a holder.
  void Refresh(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Is rung when the constants of a holder become doubted.
  DoubtBell& bell() { return bell_; }
  // Returns the holders whose constants are doubted. Takes a lock for each holder: not for calls.
  std::vector<HolderPeer*> Doubted() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns all holders as Refresh last found them, in order of their ids.
  std::vector<HolderView> Views() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::vector<HolderPeer*> Peers() const ABSL_LOCKS_EXCLUDED(mu_);
  void Tell(HolderPeer& peer, const Member& member);
  // Connects to the member if it is not the one that the peer is connected to.
  absl::Status Settle(HolderPeer& peer, const Member& member)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(peer.mu_);

  DirectoryView* const view_;
  HolderControlFactory* const factory_;
  const SeedProfile seed_;
  DoubtBell bell_;
  alignas(64) std::atomic<uint64_t> avoid_count_{0};
  std::atomic<uint32_t> table_count_{0};
  std::atomic<uint64_t> heard_news_{0};  // DirectoryView::member_news that all peers were told
  std::atomic<uint64_t> target_count_{0};
  alignas(64) mutable absl::Mutex mu_;
  absl::flat_hash_map<HolderId, std::unique_ptr<HolderPeer>> peers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> hosts_ ABSL_GUARDED_BY(mu_);  // identities; the first is this host's
};

}  // namespace ckv
