// What all engines of a requester share about each holder: its control connection and constants.

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
#include "client/control.h"
#include "client/directory_view.h"
#include "client/live_model.h"
#include "client/profile.h"
#include "client/profile_seed.h"
#include "client/requester.h"
#include "proto/ids.h"

namespace ckv {

// Requests posted to one holder and not answered, over all engines; used as the atomic it wraps.
// Thread-safe.
class InFlight {
 public:
  // `period` is of all holders together and must outlive this.
  explicit InFlight(BusyPeriod* period) : period_(period) {}
  void fetch_add(uint32_t count, std::memory_order order) {
    period_->Begin(count);
    count_.fetch_add(count, order);
  }
  void fetch_sub(uint32_t count, std::memory_order order) {
    period_->End(count);
    count_.fetch_sub(count, order);
  }
  uint32_t load(std::memory_order order) const { return count_.load(order); }

 private:
  BusyPeriod* const period_;
  std::atomic<uint32_t> count_{0};
};

// Which fabric a holder is spoken to over, and why.
struct FabricChoice {
  uint64_t ordinal = 0;  // of the peer's choices, from 1
  FabricKind fabric = FabricKind::kTcp;
  Epoch epoch;  // of the holder's life that was probed
  Instant made;
  std::vector<FabricTrial> trials;
  std::string fallback;  // as in HolderView
};

// One holder. Thread-safe; lives as long as its table.
class HolderPeer {
 public:
  // `requests` and `seed` must outlive it; no seed: null.
  HolderPeer(HolderId id, BusyPeriod* requests, const SeedProfile* seed = nullptr)
      : fabric(requests), model(id, seed, requests), in_flight(requests), id_(std::move(id)) {}

  const HolderId& id() const { return id_; }
  // "holder h0 (127.0.0.1:7401)", for errors.
  std::string Describe() const ABSL_LOCKS_EXCLUDED(mu_);
  HolderView View() const ABSL_LOCKS_EXCLUDED(mu_);
  // The directory, when last asked by PeerTable::Refresh, knew no such member.
  bool gone() const ABSL_LOCKS_EXCLUDED(mu_);

  // Measured from outside the hot path; empty until then.
  std::optional<ComputeConstants> compute() const ABSL_LOCKS_EXCLUDED(mu_);
  void set_compute(const ComputeConstants& compute) ABSL_LOCKS_EXCLUDED(mu_);

  // For the cost model, with what the requester's profile has of this holder over the fabric of its
  // last lane. Null, or a geometry that is not the profile's: nothing of it.
  //   fabric   T_probe and BW of live probes and requests; before any, the profile's. The pull
  //            bandwidth is the profile's.
  //   compute  the profile's curve, else what was measured; times the live factor.
  //   wire share, splice share  the profile's; 0 and 1 without, as Candidate has them.
  std::optional<FabricConstants> FabricFor(const Geometry* geometry) const;
  double WireShareFor(const Geometry* geometry) const;
  double SpliceShareFor(const Geometry* geometry) const;
  ComputeConstants ComputeFor(const Geometry* geometry) const ABSL_LOCKS_EXCLUDED(mu_);
  // LiveModel::Observe, before `fabric` and `queue_ns` are told of the same answer. A lane from
  // before the fabric was chosen anew tells nothing.
  void ObserveAttend(const AnsweredFrame& frame, Clock& clock) {
    if (frame.fabric != fabric_kind.load(std::memory_order_relaxed)) return;
    model.Observe(frame, fabric.Get(), queue_ns.load(std::memory_order_relaxed) / 1e3, clock);
  }

  // The last choice made; its ordinal is 0 before the first.
  FabricChoice choice() const ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the turn to choose, once nobody else has it. False: while waiting, another made a choice
  // after the `seen`-th, so there is none to make. After true, EndChoice must be called.
  //   DeadlineExceeded    another engine still had the turn.
  absl::StatusOr<bool> BeginChoice(Clock& clock, uint64_t seen, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Absent: no fabric was found, and the last choice stays.
  void EndChoice(std::optional<FabricChoice> made) ABSL_LOCKS_EXCLUDED(mu_);

  LiveFabric fabric;
  LiveModel model;
  std::atomic<int64_t> probed_ns{0};  // when `fabric` was last set by a probe
  InFlight in_flight;
  // Lanes that their engines have open. An engine finds a lane broken when it next uses it.
  std::atomic<uint32_t> lane_count{0};
  // One of them was found broken, and none came up since: what one found, the others will.
  std::atomic<bool> lane_broke{false};
  std::atomic<uint64_t> lane_epoch{0};  // of the session of the last lane that came up
  std::atomic<FabricKind> fabric_kind{FabricKind::kTcp};  // of the last lane that came up
  std::atomic<uint32_t> queue_ns{0};                      // as the last reply told

  // It failed a call lately: where a replica can be asked, it is not (PeerTable::Avoid).
  bool avoided(Instant now) const { return avoided_until() > now; }
  Instant avoided_until() const { return {avoid_until_ns_.load(std::memory_order_relaxed)}; }
  // It answered. While all is well, one look.
  void Answered() {
    if (failure_count_.load(std::memory_order_relaxed) == 0) return;
    failure_count_.store(0, std::memory_order_relaxed);
    avoid_until_ns_.store(0, std::memory_order_relaxed);
  }

 private:
  friend class PeerTable;

  const LaneProfile* SeedOf(const Geometry* geometry) const;

  std::atomic<int64_t> avoid_until_ns_{0};
  std::atomic<uint32_t> failure_count_{0};  // since it last answered

  const HolderId id_;
  mutable absl::Mutex mu_;
  Member member_ ABSL_GUARDED_BY(mu_);
  // Shared, because a call may still use the connection that an address change replaces.
  std::shared_ptr<HolderControl> control_ ABSL_GUARDED_BY(mu_);
  bool suspect_ ABSL_GUARDED_BY(mu_) = false;  // ask the directory before the next connection
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<ComputeConstants> compute_ ABSL_GUARDED_BY(mu_);
  FabricChoice choice_ ABSL_GUARDED_BY(mu_);
  bool choosing_ ABSL_GUARDED_BY(mu_) = false;
};

// "holder h0 (127.0.0.1:7401), holder h1 (127.0.0.1:7402) and 3 more": whom a call waited for in
// vain, each named once.
std::string DescribePeers(std::span<const HolderPeer* const> peers);

// Every holder that was ever asked. Thread-safe.
class PeerTable {
 public:
  static constexpr size_t kPeerCountMax = 2 * size_t{kMemberCountMax};

  // All must outlive the table. `profile` seeds the constants of the holders that it names; may be
  // null.
  PeerTable(DirectoryView* view, HolderControlFactory* factory,
            std::shared_ptr<const Profile> profile = nullptr);

  // The profile, as far as it is used.
  const SeedProfile& seed() const { return seed_; }

  // Never touches the network; the pointer stays valid as long as the table.
  //   ResourceExhausted   kPeerCountMax names were seen.
  absl::StatusOr<HolderPeer*> Find(const HolderId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // The control connection to the holder; asks the directory where it is if that is not known.
  //   Unavailable         not registered, or the directory does not answer.
  absl::StatusOr<std::shared_ptr<HolderControl>> Connect(HolderPeer& peer, Instant deadline);

  // The holder did not answer: the next Connect asks the directory where it is now.
  void Suspect(HolderPeer& peer);

  // A call to it failed: its replicas, where it has any, are asked instead for `pause`, which it
  // may have asked for itself; absent: for kAvoidMin, twice as long with each failure since it last
  // answered. Either is kAvoidMax at most.
  void Avoid(HolderPeer& peer, Instant now, std::optional<Duration> pause);
  static constexpr Duration kAvoidMin = std::chrono::seconds(1);
  static constexpr Duration kAvoidMax = std::chrono::seconds(30);
  // Rises with every Avoid: whoever chose among replicas before chooses again.
  uint64_t avoid_count() const { return avoid_count_.load(std::memory_order_relaxed); }

  // Asks the directory which holders are members now. While it does not answer, what was known
  // stays: that it is away is no word against a holder.
  void Refresh(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // As Refresh last found it, in the order of ids.
  std::vector<HolderView> Views() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::vector<HolderPeer*> Peers() const ABSL_LOCKS_EXCLUDED(mu_);

  DirectoryView* const view_;
  HolderControlFactory* const factory_;
  const SeedProfile seed_;
  // Of all holders: a caller that waits for two writes for one meanwhile. Every request of every
  // engine writes it, so it has a cache line of its own.
  alignas(64) BusyPeriod requests_;
  alignas(64) std::atomic<uint64_t> avoid_count_{0};
  alignas(64) mutable absl::Mutex mu_;
  absl::flat_hash_map<HolderId, std::unique_ptr<HolderPeer>> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
