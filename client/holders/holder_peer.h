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
#include "client/cost/cost_model.h"
#include "client/cost/live_model.h"
#include "client/cost/live_queue.h"
#include "client/cost/profile.h"
#include "client/cost/profile_seed.h"
#include "client/cost/round_times.h"
#include "client/holder_view.h"
#include "client/holders/directory_view.h"
#include "proto/ids.h"
#include "transport/control.h"

namespace ckv {

// Wakes a waiting thread when the constants of some holder become doubted. Thread-safe.
class DoubtBell {
 public:
  // Call it once for each doubt, not for each reply.
  void Ring() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    rung_ = true;
  }
  // Waits until Ring is called, or was called since the last Await, or until `until`.
  void Await(Clock& clock, Instant until) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    clock.Await(mu_, absl::Condition(&rung_), until);
    rung_ = false;
  }

 private:
  absl::Mutex mu_;
  bool rung_ ABSL_GUARDED_BY(mu_) = false;
};

// The rows over which a holder's kernel was measured, so that it can be measured over them again.
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
  std::vector<FabricKind> holder_fabrics;  // all that the holder reported
};

// Whose turn it is to choose the fabric of a holder, and the last choice. Thread-safe.
class FabricTurn {
 public:
  // Returns the last choice. Its ordinal is 0 before the first.
  FabricChoice choice() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until no other call is choosing, and takes the turn to choose. If it returns true, call
  // End. Returns false if another call has made a later choice than number `seen` meanwhile.
  //   DeadlineExceeded    another call was still choosing.
  absl::StatusOr<bool> Begin(Clock& clock, uint64_t seen, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the turn. If `made` is unset, no fabric was found, and the last choice stays.
  void End(std::optional<FabricChoice> made) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  FabricChoice choice_ ABSL_GUARDED_BY(mu_);
  bool choosing_ ABSL_GUARDED_BY(mu_) = false;
};

// Until when calls avoid a holder because it failed one. Thread-safe: all accesses are relaxed,
// because they order nothing.
class HolderAvoidance {
 public:
  static constexpr Duration kPauseMin = std::chrono::seconds(1);
  static constexpr Duration kPauseMax = std::chrono::seconds(30);

  // Call when a call to the holder failed. If `pause` is unset, it is kPauseMin, doubled with each
  // failure since the last answer. No pause is longer than kPauseMax.
  void Fail(Instant now, std::optional<Duration> pause);
  // Call when the holder answered, or has another incarnation. Ends the avoidance.
  void End() {
    if (failure_count_.load(std::memory_order_relaxed) == 0) return;
    failure_count_.store(0, std::memory_order_relaxed);
    until_ns_.store(0, std::memory_order_relaxed);
  }
  Instant until() const { return {until_ns_.load(std::memory_order_relaxed)}; }

 private:
  std::atomic<int64_t> until_ns_{0};
  std::atomic<uint32_t> failure_count_{0};  // since the last answer
};

// The control connection to a holder, which follows what the directory reports about it.
// Thread-safe.
class HolderConnection {
 public:
  // `avoidance` and `model` must outlive it: another incarnation of the holder ends its avoidance
  // and may have another kernel target.
  HolderConnection(HolderAvoidance* avoidance, LiveModel* model)
      : avoidance_(avoidance), model_(model) {}

  // Returns the member that it is connected to. Empty before the first connection.
  Member member() const ABSL_LOCKS_EXCLUDED(mu_);
  // Puts the member, whether the directory lists it, and when it was not reached, into a view.
  void AddTo(HolderView& view) const ABSL_LOCKS_EXCLUDED(mu_);
  bool gone() const ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the directory's state of the holder: its kernel target, even before anything is
  // connected. Ignores news of an earlier epoch than the latest one seen. Returns true if the
  // target has changed.
  bool Hear(const Member& member) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the latest epoch that Hear took.
  Epoch heard_epoch() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the connection if it can be used without a query of the directory, else null.
  // `suspect` is then true if the directory's answer must not be an old one.
  std::shared_ptr<HolderControl> Usable(bool& suspect) const ABSL_LOCKS_EXCLUDED(mu_);
  // Connects to the member that a query of the directory returned, if it is connected to another
  // one or to none. If the directory did not answer, the holder is assumed to be where it was.
  absl::StatusOr<std::shared_ptr<HolderControl>> Connect(const absl::StatusOr<Member>& member,
                                                         HolderControlFactory& factory)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the news that this member is up. Replaces the connection, if there is one. Returns true
  // if sessions of earlier epochs are no longer used.
  bool OnMemberUp(const Member& member, HolderControlFactory& factory) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the next Connect need an answer of the directory.
  void Suspect() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes whether the directory lists the holder. If it does not, or if `reborn`, suspects it.
  void SetGone(bool gone, bool reborn) ABSL_LOCKS_EXCLUDED(mu_);

  // Records that the holder was not reached at `failed`, or, if unset, that a session opened.
  void NoteReach(std::optional<Instant> failed) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Settle(const Member& member, HolderControlFactory& factory)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  HolderAvoidance* const avoidance_;
  LiveModel* const model_;
  mutable absl::Mutex mu_;
  Member member_ ABSL_GUARDED_BY(mu_);  // the one that control_ is connected to
  Epoch heard_epoch_ ABSL_GUARDED_BY(mu_);
  // Shared, because a call may still use the connection that an address change replaces.
  std::shared_ptr<HolderControl> control_ ABSL_GUARDED_BY(mu_);
  bool suspect_ ABSL_GUARDED_BY(mu_) = false;  // query the directory before the next connection
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  // As in HolderView, and the epoch in which the attempts were made.
  std::optional<Instant> unreached_at_ ABSL_GUARDED_BY(mu_), unreached_since_ ABSL_GUARDED_BY(mu_);
  Epoch unreached_epoch_ ABSL_GUARDED_BY(mu_);
};

// One holder: what its lanes have shown about it. Has the holder's connection, fabric and avoidance
// beside. Thread-safe. Valid as long as its table.
class HolderPeer {
 public:
  // `seed` and `bell` must outlive the peer. Both may be null.
  explicit HolderPeer(HolderId id, const SeedProfile* seed = nullptr, DoubtBell* bell = nullptr)
      : fabric(&in_flight),
        model(id, seed),
        connection(&avoidance, &model),
        bell_(bell),
        id_(std::move(id)) {}

  const HolderId& id() const { return id_; }
  // Returns "holder h0 (127.0.0.1:7401)", for errors.
  std::string Describe() const;
  HolderView View() const;
  // Returns true if the directory did not list the holder at the last PeerTable::Refresh.
  // PeerTable's OnMemberUp and Connect reset it.
  bool gone() const { return connection.gone(); }

  // The measured constants of its kernel over rows of these widths. Unset until Explain sets them.
  std::optional<ComputeConstants> compute(const RowWidths& widths) const ABSL_LOCKS_EXCLUDED(mu_);
  void set_compute(const RowWidths& widths, const ComputeConstants& compute, MeasuredOver over)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the rows to measure again, one entry for each widths: all if `fabric` is doubted, else
  // those whose kernel constants are doubted.
  std::vector<MeasuredOver> Doubted() const ABSL_LOCKS_EXCLUDED(mu_);

  // Return constants for the cost model. If the requester's profile covers `geometry`, they use its
  // constants for this holder, over the fabric of its last lane.
  //   FabricFor       T_probe and BW from live probes and requests, or the profile's before any.
  //                   The prefetch bandwidth is that of prefetches that ended, or the profile's
  //                   before any.
  //   ComputeFor      the profile's curve, or the measured constants if it has none, times the
  //                   current slowdown of the kernel.
  //   WireShareFor    the profile's, or 0 without one. So are BurstBytesFor and
  //                   ColdExchangeFor.
  //   SpliceShareFor  the profile's, or 1 without one.
  //   RouteElbowFor   the profile's LaneProfile::route_elbow, or 0 without one.
  std::optional<FabricConstants> FabricFor(const Geometry& geometry) const;
  double WireShareFor(const Geometry& geometry) const;
  double BurstBytesFor(const Geometry& geometry) const;
  ColdExchange ColdExchangeFor(const Geometry& geometry) const;
  double SpliceShareFor(const Geometry& geometry) const;
  uint32_t RouteElbowFor(const Geometry& geometry) const;
  ComputeConstants ComputeFor(const Geometry& geometry) const ABSL_LOCKS_EXCLUDED(mu_);
  // Passes an answer to LiveModel::Observe, and returns the kernel time that was expected of it, or
  // 0. Ignores an answer over a fabric that is no longer the chosen one.
  double ObserveAttend(const AnsweredFrame& frame) {
    if (frame.fabric != fabric_kind.load(std::memory_order_relaxed)) return 0;
    const LiveModel::Learned learned = model.Observe(frame);
    if (learned.doubted_now) Doubt();
    return learned.expected_us;
  }
  // Passes a round trip to LiveFabric::Observe, without what ColdExchange adds to it.
  void ObserveLane(uint64_t bytes, double us) {
    if (fabric.Observe(bytes, us)) Doubt();
  }
  // Doubts its constants although no reply disagrees with them, because no call queries the holder.
  void DoubtUnqueried(const RowWidths& widths) {
    if (model.Doubt(widths)) Doubt();
  }
  // Reports that its constants must be measured again. Takes a lock: call it at most once for each
  // doubt.
  void Doubt() {
    if (bell_ != nullptr) bell_->Ring();
  }

  // Requests posted to the holder and not answered, over all calls. Every request writes this, so
  // it has its own cache line.
  alignas(64) BusyPeriod in_flight;
  alignas(64) LiveFabric fabric;
  LiveBandwidth bandwidth;
  RatioHistogram prefetch_ratios;  // prefetched slices, by the constants known before each
  LiveModel model;
  std::atomic<int64_t> probed_ns{0};  // when a probe last set `fabric`
  // Lanes that call contexts have open. A context detects a broken lane only at its next use.
  std::atomic<uint32_t> lane_count{0};
  // True if a lane was found broken and none was opened since. The others are then broken too.
  std::atomic<bool> lane_broke{false};
  std::atomic<uint64_t> lane_epoch{0};  // the session's epoch of the last lane opened
  // The holder's latest epoch that a session or the directory reported. Sessions of earlier epochs
  // are dropped before they are used.
  std::atomic<uint64_t> epoch{0};
  std::atomic<FabricKind> fabric_kind{FabricKind::kTcp};  // that of the last lane opened
  LiveQueue queue;
  RoundTimes round_times;  // for calls with replicas; see HedgedAttend
  // If the holder failed a call recently, a replica is queried instead, if there is one
  // (PeerTable::Avoid).
  HolderAvoidance avoidance;
  HolderConnection connection;
  FabricTurn fabric_turn;

  // The holder's place on its host, as reported when a session opened.
  HostSeat seat() const { return seat_.load(std::memory_order_relaxed); }
  void set_seat(HostSeat seat) { seat_.store(seat, std::memory_order_relaxed); }

 private:
  const LaneProfile* SeedOf(const Geometry& geometry) const;

  std::atomic<HostSeat> seat_{HostSeat{}};
  static_assert(std::atomic<HostSeat>::is_always_lock_free);
  DoubtBell* const bell_;
  const HolderId id_;
  // The measured constants of some widths: LiveModel::kWidthsMax at most.
  struct Measured {
    RowWidths widths;
    ComputeConstants compute;
    MeasuredOver over;
  };
  mutable absl::Mutex mu_;
  std::vector<Measured> measured_ ABSL_GUARDED_BY(mu_);
};

// Returns "holder h0 (127.0.0.1:7401), holder h1 (127.0.0.1:7402) and 3 more", for an error that
// names the holders that did not answer. Each is named once.
std::string DescribePeers(std::span<const HolderPeer* const> peers);

// Every holder that a call ever needed. Thread-safe.
class PeerTable {
 public:
  static constexpr size_t kPeerCountMax = 2 * size_t{kMemberCountMax};

  // `view` and `factory` must outlive the table. `profile` seeds the constants of the holders that
  // it names, if it was measured with the kernels of `backend`. `profile` may be null.
  PeerTable(DirectoryView* view, HolderControlFactory* factory,
            std::shared_ptr<const Profile> profile = nullptr,
            const Backend& backend = *Backend::Cpu());

  // The profile, for the geometries and the host it applies to.
  const SeedProfile& seed() const { return seed_; }
  // Returns the number of link tables that used this table before, and counts one more.
  uint32_t NextTable() { return table_count_.fetch_add(1, std::memory_order_relaxed); }

  // Returns the holder of this id, and adds it if it is new. Never uses the network. Its kernel
  // target is known from then on if its member is known. The pointer is valid as long as the table.
  //   ResourceExhausted   the table has kPeerCountMax holders.
  absl::StatusOr<HolderPeer*> Find(const HolderId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the control connection to the holder. Queries the directory for its address if it is
  // not known.
  //   Unavailable         the holder is not registered, or the directory does not answer.
  absl::StatusOr<std::shared_ptr<HolderControl>> Connect(HolderPeer& peer, Instant deadline);

  // Call when the holder did not answer. The next Connect queries the directory for its address.
  void Suspect(HolderPeer& peer);

  // Call when the directory reports that this member is up. Its kernel target is known from then
  // on. If it was used before, in an earlier epoch, its control connection is replaced. Its earlier
  // sessions are no longer used.
  void OnMemberUp(const Member& member) ABSL_LOCKS_EXCLUDED(mu_);

  // Call when a session with the holder opened. An epoch that the directory has not reported yet is
  // another incarnation, whose kernel target may differ. Then queries the directory, up to
  // `deadline`. Until the directory answers, the target is unknown.
  void Meet(HolderPeer& peer, Epoch epoch, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Passes the view's news of members to the holders, from any query of the directory. Call it
  // before reading model.target(). Takes two loads if there is no news.
  void Hear() ABSL_LOCKS_EXCLUDED(mu_);
  // Increases when the target of any holder becomes known or changes. A choice by targets made at a
  // lower count must be made again.
  uint64_t target_count() const { return target_count_.load(std::memory_order_acquire); }

  // Call when a session with the holder opened. Holders whose hosts have the same identity get
  // seats of one host. Beyond kHostCountMax hosts, seats are unknown.
  void NoteHost(HolderPeer& peer, const HostFacts& host) ABSL_LOCKS_EXCLUDED(mu_);

  // Call when a call to the holder failed. For `pause`, calls query its replicas instead, if it has
  // any. `pause` may be the holder's own hint; it may be unset (HolderAvoidance::Fail).
  void Avoid(HolderPeer& peer, Instant now, std::optional<Duration> pause);
  // Increases with every Avoid. A choice among replicas made at a lower count must be made again.
  uint64_t avoid_count() const { return avoid_count_.load(std::memory_order_relaxed); }

  // Queries the directory for the holders that are members now. If it does not answer, nothing
  // changes: an unreachable directory is no evidence against a holder.
  void Refresh(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Rings when the constants of a holder become doubted.
  DoubtBell& bell() { return bell_; }
  // Returns the holders whose constants are doubted. Takes a lock for each holder: not for use in
  // calls.
  std::vector<HolderPeer*> Doubted() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns all holders as the last Refresh found them, ordered by id.
  std::vector<HolderView> Views() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::vector<HolderPeer*> Peers() const ABSL_LOCKS_EXCLUDED(mu_);
  void Update(HolderPeer& peer, const Member& member);

  DirectoryView* const view_;
  HolderControlFactory* const factory_;
  const SeedProfile seed_;
  DoubtBell bell_;
  alignas(64) std::atomic<uint64_t> avoid_count_{0};
  std::atomic<uint32_t> table_count_{0};
  std::atomic<uint64_t> heard_news_{0};  // DirectoryView::member_news that all peers have
  std::atomic<uint64_t> target_count_{0};
  alignas(64) mutable absl::Mutex mu_;
  absl::flat_hash_map<HolderId, std::unique_ptr<HolderPeer>> peers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> hosts_ ABSL_GUARDED_BY(mu_);  // identities; the first is this host's
};

}  // namespace ckv
