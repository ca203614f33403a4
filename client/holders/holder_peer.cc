// HolderPeer has the constants and the reachability of one holder, PeerTable all of them. A peer's
// connection: Connect asks the view for the member and calls Settle, which replaces the connection
// if the epoch or address is new. Learn does the same for a member that a watch reported. Calls in
// progress keep the previous connection. A peer's fabric: BeginChoice lets one call choose while
// others wait, and EndChoice publishes the choice. Avoid and Suspect mark a holder that failed; an
// answer or a new epoch ends that.

#include "client/holders/holder_peer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr size_t kNamedHolderCountMax = 8;  // in an error: the rest are counted

}  // namespace

std::string HolderPeer::Describe() const {
  absl::MutexLock lock(&mu_);
  return absl::StrFormat(
      "holder %s (%s)", id_.name,
      member_.control_address.empty() ? "address not known" : member_.control_address);
}

std::string DescribePeers(std::span<const HolderPeer* const> peers) {
  std::string text;
  size_t unnamed = 0, named = 0;
  for (size_t i = 0; i < peers.size(); ++i) {
    const auto before = peers.first(i);
    if (std::find(before.begin(), before.end(), peers[i]) != before.end()) continue;
    if (named == kNamedHolderCountMax) {
      ++unnamed;
      continue;
    }
    text += (named++ == 0 ? "" : ", ") + peers[i]->Describe();
  }
  if (unnamed > 0) absl::StrAppendFormat(&text, " and %d more", unnamed);
  return text;
}

HolderView HolderPeer::View() const {
  HolderView view;
  bool listed = false;
  {
    absl::MutexLock lock(&mu_);
    view.member = member_;
    listed = !gone_;
    view.trials = choice_.trials;
    view.fallback = choice_.fallback;
    if (unreached_epoch_ == heard_epoch_) {
      view.unreached_at = unreached_at_;
      view.unreached_since = unreached_since_;
    }
  }
  view.member.id = id_;
  view.lane_count = lane_count.load(std::memory_order_relaxed);
  view.connected = listed && view.lane_count > 0 && !lane_broke.load(std::memory_order_relaxed);
  view.fabric = fabric_kind.load(std::memory_order_relaxed);
  view.constants = fabric.Get().value_or(FabricConstants{});
  view.model_error = model.error();
  view.route_ratios = model.ratios();
  view.pull_ratios = pull_ratios.Read();
  view.in_flight = in_flight.Get();
  return view;
}

void HolderPeer::NoteReach(std::optional<Instant> failed) {
  absl::MutexLock lock(&mu_);
  if (!failed || !unreached_at_ || unreached_epoch_ != heard_epoch_) unreached_since_ = failed;
  unreached_at_ = failed;
  unreached_epoch_ = heard_epoch_;
}

bool HolderPeer::gone() const {
  absl::MutexLock lock(&mu_);
  return gone_;
}

std::optional<ComputeConstants> HolderPeer::compute(const RowWidths& widths) const {
  absl::MutexLock lock(&mu_);
  for (const Measured& measured : measured_) {
    if (measured.widths == widths) return measured.compute;
  }
  return std::nullopt;
}

void HolderPeer::set_compute(const RowWidths& widths, const ComputeConstants& compute,
                             MeasuredOver over) {
  absl::MutexLock lock(&mu_);
  auto known = std::find_if(measured_.begin(), measured_.end(),
                            [&](const Measured& measured) { return measured.widths == widths; });
  if (known == measured_.end()) {
    // Widths beyond the limit take the place of the last ones.
    if (measured_.size() == LiveModel::kWidthsMax) measured_.pop_back();
    known = measured_.insert(measured_.end(), {.widths = widths, .compute = {}, .over = {}});
  }
  known->compute = compute;
  known->over = std::move(over);
  model.SetMeasured(widths, compute);
}

std::vector<MeasuredOver> HolderPeer::Doubted() const {
  std::vector<MeasuredOver> doubted;
  absl::MutexLock lock(&mu_);
  for (const Measured& measured : measured_) {
    if (fabric.doubted() || model.doubted(measured.widths)) doubted.push_back(measured.over);
  }
  return doubted;
}

// Returns null before a lane has opened, because no fabric is known until then.
const LaneProfile* HolderPeer::SeedOf(const Geometry& geometry) const {
  if (lane_epoch.load(std::memory_order_relaxed) == 0) return nullptr;
  return model.SeedOf(geometry, fabric_kind.load(std::memory_order_relaxed));
}

std::optional<FabricConstants> HolderPeer::FabricFor(const Geometry& geometry) const {
  std::optional<FabricConstants> constants = fabric.Get();
  const LaneProfile* const seed = SeedOf(geometry);
  if (seed != nullptr) {
    if (!constants) constants = seed->constants;
    constants->pull_bandwidth_bytes_per_s = seed->constants.pull_bandwidth_bytes_per_s;
  }
  const double pulled = pull.Get();
  if (constants && pulled > 0) constants->pull_bandwidth_bytes_per_s = pulled;
  return constants;
}

double HolderPeer::WireShareFor(const Geometry& geometry) const {
  const LaneProfile* const seed = SeedOf(geometry);
  return seed == nullptr ? 0 : seed->wire_share;
}

double HolderPeer::SpliceShareFor(const Geometry& geometry) const {
  const LaneProfile* const seed = SeedOf(geometry);
  return seed == nullptr ? 1 : seed->splice_share;
}

ComputeConstants HolderPeer::ComputeFor(const Geometry& geometry) const {
  const RowWidths widths = geometry.widths();
  return model.ComputeFor(widths, compute(widths), SeedOf(geometry));
}

bool HolderPeer::Hear(const Member& member) {
  absl::MutexLock lock(&mu_);
  if (member.epoch.value < heard_epoch_.value) return false;
  heard_epoch_ = member.epoch;
  if (model.target() == member.kernel_target) return false;
  model.SetTarget(member.kernel_target);
  return true;
}

Epoch HolderPeer::heard_epoch() const {
  absl::MutexLock lock(&mu_);
  return heard_epoch_;
}

FabricChoice HolderPeer::choice() const {
  absl::MutexLock lock(&mu_);
  return choice_;
}

absl::StatusOr<bool> HolderPeer::BeginChoice(Clock& clock, uint64_t seen, Instant deadline) {
  absl::MutexLock lock(&mu_);
  const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !choosing_; };
  if (!clock.Await(mu_, absl::Condition(&free), deadline)) {
    return absl::DeadlineExceededError(
        "another call was still probing the fabrics to it: give calls more time than "
        "connect_timeout at first");
  }
  if (choice_.ordinal > seen) return false;
  choosing_ = true;
  return true;
}

void HolderPeer::EndChoice(std::optional<FabricChoice> made) {
  absl::MutexLock lock(&mu_);
  choosing_ = false;
  if (!made) return;
  made->ordinal = choice_.ordinal + 1;
  choice_ = *std::move(made);
}

PeerTable::PeerTable(DirectoryView* view, HolderControlFactory* factory,
                     std::shared_ptr<const Profile> profile, const Backend& backend)
    : view_(view),
      factory_(factory),
      seed_(std::move(profile), HostIdentity(), KernelTargetIdOf(backend.kernel_target())),
      hosts_({HostIdentity()}) {}

absl::StatusOr<HolderPeer*> PeerTable::Find(const HolderId& id) {
  HolderPeer* peer = nullptr;
  {
    absl::MutexLock lock(&mu_);
    const auto it = peers_.find(id);
    if (it != peers_.end()) return it->second.get();
    if (peers_.size() >= kPeerCountMax) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("holder '%s': %d holders are known already", id.name, kPeerCountMax));
    }
    peer = peers_.emplace(id, std::make_unique<HolderPeer>(id, &seed_, &bell_)).first->second.get();
  }
  // After the insertion, so that Hear finds the peer. News in between would otherwise be missed.
  const auto known = view_->KnownHolders();
  const auto member = known.find(id);
  if (member != known.end()) Tell(*peer, member->second);
  return peer;
}

void PeerTable::Tell(HolderPeer& peer, const Member& member) {
  if (peer.Hear(member)) target_count_.fetch_add(1, std::memory_order_release);
}

void PeerTable::Meet(HolderPeer& peer, Epoch epoch, Instant deadline) {
  if (epoch.value <= peer.heard_epoch().value) return;
  view_->ListHolders(deadline).IgnoreError();
  Hear();
  if (epoch.value <= peer.heard_epoch().value) return;
  Tell(peer, {.id = peer.id(), .control_address = {}, .epoch = epoch});
}

void PeerTable::NoteHost(HolderPeer& peer, const HostFacts& host) {
  HostSeat seat;
  if (!host.identity.empty()) {
    absl::MutexLock lock(&mu_);
    auto known = std::find(hosts_.begin(), hosts_.end(), host.identity);
    if (known == hosts_.end() && hosts_.size() < kHostCountMax)
      known = hosts_.insert(hosts_.end(), host.identity);
    if (known != hosts_.end()) {
      seat.host = static_cast<uint16_t>(known - hosts_.begin() + kThisHost);
      seat.processors = host.processors;
      seat.threads = static_cast<uint16_t>(std::clamp(host.compute_threads, 1u, 0xffffu));
    }
  }
  peer.seat_.store(seat, std::memory_order_relaxed);
}

void PeerTable::Hear() {
  const uint64_t news = view_->member_news();
  if (heard_news_.load(std::memory_order_acquire) == news) return;
  const auto known = view_->KnownHolders();
  for (HolderPeer* peer : Peers()) {
    const auto member = known.find(peer->id());
    if (member != known.end()) Tell(*peer, member->second);
  }
  // Stored last: a thread that sees it set sees the targets set too. News that arrived meanwhile is
  // processed next time.
  heard_news_.store(news, std::memory_order_release);
}

absl::StatusOr<std::shared_ptr<HolderControl>> PeerTable::Connect(HolderPeer& peer,
                                                                  Instant deadline) {
  bool refresh = false;
  {
    absl::MutexLock lock(&peer.mu_);
    if (peer.control_ != nullptr && !peer.suspect_) return peer.control_;
    refresh = peer.suspect_;
  }
  const absl::StatusOr<Member> member = view_->FindMember(peer.id_, refresh, deadline);
  Hear();
  absl::MutexLock lock(&peer.mu_);
  if (!member.ok()) {
    // If the directory is unreachable, the holder is assumed to be where it was.
    if (peer.control_ != nullptr) return peer.control_;
    return member.status();
  }
  // Learn may have settled a later epoch while the directory was queried.
  if (peer.control_ != nullptr && !peer.suspect_ &&
      member->epoch.value < peer.member_.epoch.value) {
    return peer.control_;
  }
  CKV_RETURN_IF_ERROR(Settle(peer, *member));
  return peer.control_;
}

absl::Status PeerTable::Settle(HolderPeer& peer, const Member& member) {
  // A new epoch or address of the holder needs a new connection. Calls that still use the old one
  // keep it.
  if (peer.control_ == nullptr || peer.member_ != member) {
    // Failures of an earlier incarnation do not count against this one.
    if (peer.member_.epoch < member.epoch) peer.Answered();
    auto control = factory_->Connect(member);
    if (!control.ok()) return Annotate(control.status(), "connecting");
    peer.control_ = *std::move(control);
    peer.member_ = member;
  }
  peer.suspect_ = false;
  peer.gone_ = false;
  return absl::OkStatus();
}

void PeerTable::Learn(const Member& member) {
  view_->Note(member);
  Hear();
  HolderPeer* peer = nullptr;
  {
    absl::MutexLock lock(&mu_);
    const auto it = peers_.find(member.id);
    if (it == peers_.end() || member.role != MemberRole::kHolder) return;
    peer = it->second.get();
  }
  absl::MutexLock lock(&peer->mu_);
  // News of an earlier epoch is stale. A first connection is made when it is needed.
  if (member.epoch.value < peer->member_.epoch.value) return;
  peer->gone_ = false;
  if (peer->control_ == nullptr) return;
  if (!Settle(*peer, member).ok()) peer->suspect_ = true;
  if (peer->epoch.load(std::memory_order_relaxed) < member.epoch.value)
    peer->epoch.store(member.epoch.value, std::memory_order_relaxed);
}

void PeerTable::Suspect(HolderPeer& peer) {
  absl::MutexLock lock(&peer.mu_);
  peer.suspect_ = true;
}

void PeerTable::Avoid(HolderPeer& peer, Instant now, std::optional<Duration> pause) {
  if (!pause) {
    const uint32_t failures = peer.failure_count_.load(std::memory_order_relaxed);
    pause = kAvoidMin * (int64_t{1} << std::min(failures, 16u));
  }
  pause = std::min(*pause, kAvoidMax);
  peer.failure_count_.fetch_add(1, std::memory_order_relaxed);
  peer.avoid_until_ns_.store((now + *pause).ns, std::memory_order_relaxed);
  avoid_count_.fetch_add(1, std::memory_order_relaxed);
}

void PeerTable::Refresh(Instant deadline) {
  const auto members = view_->ListHolders(deadline);
  if (!members.ok()) return;
  Hear();
  for (HolderPeer* peer : Peers()) {
    const auto it = members->find(peer->id());
    const bool gone = it == members->end();
    // Lanes of an earlier epoch of the holder no longer answer. A lane of a later epoch than the
    // list's was opened while the list was in transit.
    const bool reborn = !gone && peer->lane_count.load(std::memory_order_relaxed) > 0 &&
                        peer->lane_epoch.load(std::memory_order_relaxed) < it->second.epoch.value;
    if (reborn) {
      peer->lane_broke.store(true, std::memory_order_relaxed);
      peer->epoch.store(it->second.epoch.value, std::memory_order_relaxed);
    }
    absl::MutexLock lock(&peer->mu_);
    peer->gone_ = gone;
    if (gone || reborn) peer->suspect_ = true;
  }
}

std::vector<HolderPeer*> PeerTable::Peers() const {
  absl::MutexLock lock(&mu_);
  std::vector<HolderPeer*> peers;
  peers.reserve(peers_.size());
  for (const auto& [id, peer] : peers_) peers.push_back(peer.get());
  return peers;
}

std::vector<HolderPeer*> PeerTable::Doubted() const {
  std::vector<HolderPeer*> doubted = Peers();
  std::erase_if(doubted, [](const HolderPeer* peer) { return peer->Doubted().empty(); });
  return doubted;
}

std::vector<HolderView> PeerTable::Views() const {
  const std::vector<HolderPeer*> peers = Peers();
  std::vector<HolderView> views;
  views.reserve(peers.size());
  for (const HolderPeer* peer : peers) views.push_back(peer->View());
  std::sort(views.begin(), views.end(),
            [](const HolderView& a, const HolderView& b) { return a.member.id < b.member.id; });
  return views;
}

}  // namespace ckv
