// HolderPeer has the constants and the reachability of one holder, PeerTable all of them. A peer's
// connection: Connect asks the view for the member and calls Settle, which replaces the connection
// if the epoch or address is new. OnMemberUp does the same for a member that a watch reported.
// Calls in progress keep the previous connection. A peer's fabric: Begin lets one call choose while
// others wait, and End publishes the choice. Avoid and Suspect mark a holder that failed; an answer
// or a new epoch ends that.

#include "client/holders/holder_peer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr size_t kNamedHolderCountMax = 8;  // in an error: the rest are counted

}  // namespace

FabricChoice FabricTurn::choice() const {
  absl::MutexLock lock(&mu_);
  return choice_;
}

absl::StatusOr<bool> FabricTurn::Begin(Clock& clock, uint64_t seen, Instant deadline) {
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

void FabricTurn::End(std::optional<FabricChoice> made) {
  absl::MutexLock lock(&mu_);
  choosing_ = false;
  if (!made) return;
  made->ordinal = choice_.ordinal + 1;
  choice_ = *std::move(made);
}

void HolderAvoidance::Fail(Instant now, std::optional<Duration> pause) {
  if (!pause) {
    const uint32_t failures = failure_count_.load(std::memory_order_relaxed);
    pause = kPauseMin * (int64_t{1} << std::min(failures, 16u));
  }
  pause = std::min(*pause, kPauseMax);
  failure_count_.fetch_add(1, std::memory_order_relaxed);
  until_ns_.store((now + *pause).ns, std::memory_order_relaxed);
}

Member HolderConnection::member() const {
  absl::MutexLock lock(&mu_);
  return member_;
}

void HolderConnection::AddTo(HolderView& view) const {
  absl::MutexLock lock(&mu_);
  view.member = member_;
  view.connected = !gone_;
  if (unreached_epoch_ != heard_epoch_) return;
  view.unreached_at = unreached_at_;
  view.unreached_since = unreached_since_;
}

bool HolderConnection::gone() const {
  absl::MutexLock lock(&mu_);
  return gone_;
}

bool HolderConnection::Hear(const Member& member) {
  absl::MutexLock lock(&mu_);
  if (member.epoch.value < heard_epoch_.value) return false;
  heard_epoch_ = member.epoch;
  if (model_->target() == member.kernel_target) return false;
  model_->SetTarget(member.kernel_target);
  return true;
}

Epoch HolderConnection::heard_epoch() const {
  absl::MutexLock lock(&mu_);
  return heard_epoch_;
}

std::shared_ptr<HolderControl> HolderConnection::Usable(bool& suspect) const {
  absl::MutexLock lock(&mu_);
  suspect = suspect_;
  return suspect_ ? nullptr : control_;
}

absl::StatusOr<std::shared_ptr<HolderControl>> HolderConnection::Connect(
    const absl::StatusOr<Member>& member, HolderControlFactory& factory) {
  absl::MutexLock lock(&mu_);
  if (!member.ok()) {
    if (control_ != nullptr) return control_;
    return member.status();
  }
  // OnMemberUp may have settled a later epoch while the directory was queried.
  if (control_ != nullptr && !suspect_ && member->epoch.value < member_.epoch.value)
    return control_;
  CKV_RETURN_IF_ERROR(Settle(*member, factory));
  return control_;
}

absl::Status HolderConnection::Settle(const Member& member, HolderControlFactory& factory) {
  // A new epoch or address of the holder needs a new connection. Calls that still use the old one
  // keep it.
  if (control_ == nullptr || member_ != member) {
    // Failures of an earlier incarnation do not count against this one.
    if (member_.epoch < member.epoch) avoidance_->End();
    auto control = factory.Connect(member);
    if (!control.ok()) return Annotate(control.status(), "connecting");
    control_ = *std::move(control);
    member_ = member;
  }
  suspect_ = false;
  gone_ = false;
  return absl::OkStatus();
}

bool HolderConnection::OnMemberUp(const Member& member, HolderControlFactory& factory) {
  absl::MutexLock lock(&mu_);
  // News of an earlier epoch is stale. A first connection is made when it is needed.
  if (member.epoch.value < member_.epoch.value) return false;
  gone_ = false;
  if (control_ == nullptr) return false;
  if (!Settle(member, factory).ok()) suspect_ = true;
  return true;
}

void HolderConnection::Suspect() {
  absl::MutexLock lock(&mu_);
  suspect_ = true;
}

void HolderConnection::SetGone(bool gone, bool reborn) {
  absl::MutexLock lock(&mu_);
  gone_ = gone;
  if (gone || reborn) suspect_ = true;
}

void HolderConnection::NoteReach(std::optional<Instant> failed) {
  absl::MutexLock lock(&mu_);
  if (!failed || !unreached_at_ || unreached_epoch_ != heard_epoch_) unreached_since_ = failed;
  unreached_at_ = failed;
  unreached_epoch_ = heard_epoch_;
}

std::string HolderPeer::Describe() const {
  const Member member = connection.member();
  return absl::StrFormat(
      "holder %s (%s)", id_.name,
      member.control_address.empty() ? "address not known" : member.control_address);
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
  connection.AddTo(view);
  FabricChoice choice = fabric_turn.choice();
  view.trials = std::move(choice.trials);
  view.fallback = std::move(choice.fallback);
  view.member.id = id_;
  view.lane_count = lane_count.load(std::memory_order_relaxed);
  view.connected =
      view.connected && view.lane_count > 0 && !lane_broke.load(std::memory_order_relaxed);
  view.fabric = fabric_kind.load(std::memory_order_relaxed);
  view.constants = fabric.Get().value_or(FabricConstants{});
  view.model_error = model.error();
  view.route_ratios = model.ratios();
  view.prefetch_ratios = prefetch_ratios.Read();
  view.in_flight = in_flight.Get();
  return view;
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
    constants->fetch_bandwidth_bytes_per_s = seed->constants.fetch_bandwidth_bytes_per_s;
  }
  const double measured = bandwidth.Get();
  if (constants && measured > 0) constants->fetch_bandwidth_bytes_per_s = measured;
  return constants;
}

double HolderPeer::WireShareFor(const Geometry& geometry) const {
  const LaneProfile* const seed = SeedOf(geometry);
  return seed == nullptr ? 0 : seed->wire_share;
}

double HolderPeer::BurstBytesFor(const Geometry& geometry) const {
  const LaneProfile* const seed = SeedOf(geometry);
  return seed == nullptr ? 0 : seed->burst_bytes;
}

ColdExchange HolderPeer::ColdExchangeFor(const Geometry& geometry) const {
  const LaneProfile* const seed = SeedOf(geometry);
  return seed == nullptr ? ColdExchange() : seed->cold_exchange;
}

double HolderPeer::SpliceShareFor(const Geometry& geometry) const {
  const LaneProfile* const seed = SeedOf(geometry);
  return seed == nullptr ? 1 : seed->splice_share;
}

uint32_t HolderPeer::RouteElbowFor(const Geometry& geometry) const {
  const LaneProfile* const seed = SeedOf(geometry);
  return seed == nullptr ? 0 : seed->route_elbow;
}

ComputeConstants HolderPeer::ComputeFor(const Geometry& geometry) const {
  const RowWidths widths = geometry.widths();
  return model.ComputeFor(widths, compute(widths), SeedOf(geometry));
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
  if (member != known.end()) Update(*peer, member->second);
  return peer;
}

void PeerTable::Update(HolderPeer& peer, const Member& member) {
  if (peer.connection.Hear(member)) target_count_.fetch_add(1, std::memory_order_release);
}

void PeerTable::Meet(HolderPeer& peer, Epoch epoch, Instant deadline) {
  if (epoch.value <= peer.connection.heard_epoch().value) return;
  view_->ListHolders(deadline).IgnoreError();
  Hear();
  if (epoch.value <= peer.connection.heard_epoch().value) return;
  Update(peer, {.id = peer.id(), .control_address = {}, .epoch = epoch});
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
  peer.set_seat(seat);
}

void PeerTable::Hear() {
  const uint64_t news = view_->member_news();
  if (heard_news_.load(std::memory_order_acquire) == news) return;
  const auto known = view_->KnownHolders();
  for (HolderPeer* peer : Peers()) {
    const auto member = known.find(peer->id());
    if (member != known.end()) Update(*peer, member->second);
  }
  // Stored last: a thread that sees it set sees the targets set too. News that arrived meanwhile is
  // processed next time.
  heard_news_.store(news, std::memory_order_release);
}

absl::StatusOr<std::shared_ptr<HolderControl>> PeerTable::Connect(HolderPeer& peer,
                                                                  Instant deadline) {
  bool suspect = false;
  if (auto control = peer.connection.Usable(suspect)) return control;
  const absl::StatusOr<Member> member = view_->FindMember(peer.id(), suspect, deadline);
  Hear();
  return peer.connection.Connect(member, *factory_);
}

void PeerTable::OnMemberUp(const Member& member) {
  view_->Note(member);
  Hear();
  HolderPeer* peer = nullptr;
  {
    absl::MutexLock lock(&mu_);
    const auto it = peers_.find(member.id);
    if (it == peers_.end() || member.role != MemberRole::kHolder) return;
    peer = it->second.get();
  }
  if (!peer->connection.OnMemberUp(member, *factory_)) return;
  // The highest epoch of all calls: one that was overtaken must not set an earlier one.
  uint64_t seen = peer->epoch.load(std::memory_order_relaxed);
  while (seen < member.epoch.value &&
         !peer->epoch.compare_exchange_weak(seen, member.epoch.value, std::memory_order_relaxed)) {
  }
}

void PeerTable::Suspect(HolderPeer& peer) { peer.connection.Suspect(); }

void PeerTable::Avoid(HolderPeer& peer, Instant now, std::optional<Duration> pause) {
  peer.avoidance.Fail(now, pause);
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
    peer->connection.SetGone(gone, reborn);
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
