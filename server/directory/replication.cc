// Tick, in order: sees which holders are offline, and since when; takes a snapshot (View); plans
// without the directory's lock (copy_plan.h); gives each holder its orders; publishes the corpora
// whose copies are made. A publication is a change like any other: it has the next version, and
// goes through the journal. It does not wait, and is skipped if another change of the corpus is
// pending: the next plan takes it into account.

#include "server/directory/replication.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/planted_bug.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// How often to plan without a change: space on holders changes without one.
constexpr Duration kReplanPeriod = std::chrono::seconds(5);
// The part of a disk that copies leave free: 1 / 20.
constexpr uint64_t kDiskReserveParts = 20;

CopyHolder CopyHolderOf(const Lease& lease) {
  CopyHolder holder = {.id = lease.member.id, .domain = lease.member.domain};
  if (!lease.health) return holder;  // no space until it has reported it
  const MemberHealth& health = *lease.health;
  holder.bytes_per_second = health.copy_bytes_per_second;
  holder.is_durable = health.is_durable;
  if (health.is_durable) {
    const uint64_t reserve = health.disk.total_bytes / kDiskReserveParts;
    holder.capacity_bytes = health.disk.total_bytes;
    holder.room_bytes = health.disk.free_bytes - std::min(health.disk.free_bytes, reserve);
  } else {
    holder.capacity_bytes = health.capacity_bytes;
    holder.room_bytes = health.capacity_bytes - std::min(health.capacity_bytes, health.used_bytes);
  }
  if (health.fault != StoreFault::kNone) holder.room_bytes = 0;
  return holder;
}

}  // namespace

bool Replication::NoteAbsences(Instant now) {
  const Instant lost_before = now - tables_.options.loss_after;
  bool is_changed = false;
  std::map<HolderId, Instant> absent;
  for (const auto& [holder, placed] : tables_.corpora.by_holder()) {
    if (tables_.leases.Has(holder)) continue;
    const auto known = absent_since_.find(holder);
    const Instant since = known == absent_since_.end() ? now : known->second;
    absent.emplace(holder, since);
    is_changed |= since <= lost_before && planned_at_ < since + tables_.options.loss_after;
  }
  absent_since_ = std::move(absent);
  return is_changed;
}

void Replication::NoteEmptied(Instant now) {
  std::map<HolderId, Instant> emptied;
  for (const HolderId& holder : tables_.draining) {
    const bool is_empty = tables_.corpora.PlacedOn(holder) == nullptr;
    if (!is_empty && !CKV_PLANTED_BUG("drain-before-copy")) continue;
    const auto known = emptied_since_.find(holder);
    emptied.emplace(holder, known == emptied_since_.end() ? now : known->second);
  }
  emptied_since_ = std::move(emptied);
}

bool Replication::IsPlanDue(Instant now) {
  if (now < planned_at_ + kPlanPeriod) return false;
  absl::MutexLock lock(&tables_.mu);
  if (tables_.numbers.folder_id() == 0) return false;  // no incarnation has begun
  tables_.Expire();
  const bool is_lost = NoteAbsences(now);
  NoteEmptied(now);
  // A renewal that reports a holder's capacity for the first time is no change of the state.
  const size_t filling_count = filling_.size();
  NoteNewHolders(now);
  is_due_ |= filling_.size() > filling_count;
  // A stuck copy waits for the end of a failure's pause, or for room: neither is a change.
  const bool is_waiting = !plan_.corpora.empty() || plan_.under_replicated_count > 0 ||
                          plan_.stuck.count > 0 || !filling_.empty() || hot_.IsWaiting(tables_);
  const uint64_t change_count = tables_.watches.change_count();
  if (!is_due_ && !is_lost && change_count == planned_count_ &&
      !(is_waiting && now >= planned_at_ + kReplanPeriod)) {
    return false;
  }
  planned_count_ = change_count;
  return true;
}

void Replication::AddHolders(CopyPlanView& view, Instant now) const {
  for (const auto& [id, lease] : tables_.leases.all()) {
    if (lease.member.role != MemberRole::kHolder) continue;
    view.live.push_back(CopyHolderOf(lease));
    view.live.back().is_draining = tables_.draining.contains(id);
  }
  for (const auto& [holder, since] : absent_since_) {
    if (now < since + tables_.options.loss_after) view.away.insert(holder);
  }
}

void Replication::NoteNewHolders(Instant now) {
  if (!started_) started_ = now;
  const bool may_be_new = tables_.options.fill_new_holders && now >= *started_ + kNewAfter &&
                          !tables_.corpora.all().empty();
  for (const auto& [id, lease] : tables_.leases.all()) {
    if (lease.member.role != MemberRole::kHolder || !lease.health) continue;
    if (!known_.insert(id).second || !may_be_new) continue;
    if (tables_.corpora.PlacedOn(id) == nullptr) filling_.insert(id);
  }
}

CopyPlanView Replication::View(Instant now) {
  ForgetMade();
  CopyPlanView view;
  AddHolders(view, now);
  view.filling.insert(filling_.begin(), filling_.end());
  view.lacking = tables_.lacks.all();
  view.corpora.reserve(tables_.corpora.all().size());
  for (const auto& [key, corpus] : tables_.corpora.all()) {
    view.corpora.push_back(corpus);
    for (const ReplicaTable::Leased& one : tables_.corpora.replicas().LeasedOf(*corpus))
      view.leased[key][corpus->chunks[one.ordinal].id] = one.members;
  }
  for (const auto& [key, chunks] : made_) {
    for (const auto& [id, made] : chunks) {
      for (const Made& one : made) view.made[key][id].push_back(one.holder);
    }
  }
  std::erase_if(failures_, [now](const Failure& failure) { return failure.until <= now; });
  for (const Failure& failure : failures_)
    view.failed[failure.corpus][failure.id].push_back(failure.holder);
  return view;
}

bool Replication::IsForgotten(const Made& made, const ChunkId& id,
                              const HoldersByChunk& listed) const {
  const Lease* lease = tables_.leases.FindMember(made.holder);
  if (lease == nullptr || lease->id != made.lease_id) return true;
  const auto holders = listed.find(id);
  if (holders == listed.end()) return true;  // the corpus has the chunk no more
  const bool is_listed = std::find(holders->second.begin(), holders->second.end(), made.holder) !=
                         holders->second.end();
  return is_listed && !tables_.lacks.Lacks(made.holder, id);
}

void Replication::ForgetMade() {
  for (auto it = made_.begin(); it != made_.end();) {
    const std::shared_ptr<const Corpus> corpus = tables_.corpora.Find(it->first);
    MadeByChunk& chunks = it->second;
    if (corpus == nullptr) chunks.clear();
    HoldersByChunk listed;
    for (size_t i = 0; !chunks.empty() && i < corpus->chunks.size(); ++i) {
      const ChunkPlacement& chunk = corpus->chunks[i];
      if (chunks.contains(chunk.id)) listed.emplace(chunk.id, chunk.holders());
    }
    absl::erase_if(chunks, [&](auto& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu) {
      std::erase_if(chunk.second,
                    [&](const Made& made) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu) {
                      return IsForgotten(made, chunk.first, listed);
                    });
      return chunk.second.empty();
    });
    it = chunks.empty() ? made_.erase(it) : std::next(it);
  }
}

void Replication::Forget() {
  absent_since_.clear();
  emptied_since_.clear();
  started_.reset();
  known_.clear();
  filling_.clear();
  plan_ = {};
  orders_.clear();
  made_.clear();
  failures_.clear();
  hot_.Forget();
  changeable_since_.clear();
  facts_ = {};
  is_due_ = true;
}

void Replication::Tick() {
  const Instant now = tables_.options.clock->Now();
  absl::MutexLock lock(&mu_);
  {
    absl::MutexLock tables_lock(&tables_.mu);
    const bool is_other = std::exchange(term_, tables_.lead.term()) != tables_.lead.term();
    if (is_other) Forget();
    if (!tables_.lead.Leads()) return;
  }
  if (!IsPlanDue(now)) return;
  planned_at_ = now;
  is_due_ = false;
  CopyPlanView view;
  {
    absl::MutexLock tables_lock(&tables_.mu);
    view = View(now);
  }
  plan_ = PlanCopies(view);
  if (plan_.has_shares)
    absl::erase_if(filling_, [this](const HolderId& holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !plan_.moving.contains(holder);
    });
  PlanHot(view, now);
  SortOrders();
  NoteFacts(view);
  {
    absl::MutexLock tables_lock(&tables_.mu);
    CountOrders();
  }
  PublishDue(view, now);
}

void Replication::PlanHot(const CopyPlanView& view, Instant now) {
  HotPlanView hot;
  {
    absl::MutexLock lock(&tables_.mu);
    hot_.WithdrawCool(tables_, now);
    if (!tables_.options.copy_hot_chunks || !plan_.copies.empty()) return;
    hot = hot_.View(tables_, view);
  }
  plan_.copies = PlanHotCopies(std::move(hot));
}

void Replication::SortOrders() {
  orders_.clear();
  for (uint32_t i = 0; i < plan_.copies.size(); ++i) orders_[plan_.copies[i].to].push_back(i);
}

void Replication::CountOrders() {
  for (const auto& [id, lease] : tables_.leases.all()) {
    const auto orders = orders_.find(id);
    tables_.leases.FindMember(id)->copy_order_count =
        orders == orders_.end() ? 0 : static_cast<uint32_t>(orders->second.size());
  }
}

void Replication::NoteFacts(const CopyPlanView& view) {
  facts_ = {.under_replicated_count = plan_.under_replicated_count,
            .bytes_left = plan_.bytes_left,
            .stuck_count = plan_.stuck.count,
            .stuck_why = plan_.stuck.why};
  for (const CopyHolder& holder : view.live) {
    const auto planned = plan_.holders.find(holder.id);
    if (planned == plan_.holders.end() || holder.bytes_per_second == 0) continue;
    const double seconds =
        static_cast<double>(planned->second.bytes) / static_cast<double>(holder.bytes_per_second);
    facts_.left = std::max(
        facts_.left, std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
  }
}

void Replication::PublishDue(const CopyPlanView& view, Instant now) {
  std::map<CorpusKey, Instant> since;
  for (const std::shared_ptr<const Corpus>& corpus : view.corpora) {
    const CorpusKey key = KeyOf(*corpus);
    const auto planned = plan_.corpora.find(key);
    if (planned == plan_.corpora.end() || !planned->second.is_changeable) continue;
    const auto earlier = changeable_since_.find(key);
    const Instant from = earlier == changeable_since_.end() ? now : earlier->second;
    since.emplace(key, from);
    if (planned->second.waiting_count > 0 && now < from + kPublishPeriod) continue;
    std::optional<Corpus> next = PlaceMade(view, plan_, *corpus);
    if (!next) continue;
    const auto change = Begin(*corpus, *std::move(next));
    if (change == nullptr) continue;
    changes_.Submit(change);
    since.erase(key);
  }
  changeable_since_ = std::move(since);
}

std::shared_ptr<const DirectoryChange> Replication::Begin(const Corpus& from, Corpus next) {
  absl::MutexLock lock(&tables_.mu);
  const CorpusKey key = KeyOf(from);
  if (tables_.corpora.Find(key).get() != &from || tables_.pending.Has(key)) return nullptr;
  next.version = tables_.numbers.Next();
  Log().info("corpus \"{}\": version {} lists the copies that holders made", next.name,
             next.version);
  const auto pending = std::make_shared<PendingChange>();
  pending->number = next.version;
  tables_.AddPending(key, pending);
  auto change = std::make_shared<DirectoryChange>();
  change->corpus = std::make_shared<const Corpus>(std::move(next));
  return change;
}

absl::StatusOr<std::vector<CopyOrder>> Replication::ListOrders(uint64_t lease_id,
                                                               size_t count_max) {
  if (count_max == 0) count_max = kOrdersPerCallMax;
  count_max = std::min(count_max, kOrdersPerCallMax);
  absl::MutexLock lock(&mu_);
  absl::MutexLock tables_lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, tables_.leases.FindHolder(lease_id, 0));
  std::vector<CopyOrder> listed;
  const auto orders = orders_.find(lease->member.id);
  if (orders == orders_.end()) return listed;
  for (const uint32_t i : orders->second) {
    if (listed.size() == count_max) break;
    const PlannedCopy& copy = plan_.copies[i];
    CopyOrder order = {.corpus = KeyOf(*copy.corpus),
                       .geometry = copy.corpus->geometry,
                       .chunk = copy.corpus->chunks[copy.ordinal],
                       .sources = {}};
    order.chunk.set_holders({});
    order.is_leased = copy.is_leased;
    for (const HolderId& source : copy.sources) {
      if (const Lease* from = tables_.leases.FindMember(source); from != nullptr)
        order.sources.push_back(from->member);
    }
    if (!order.sources.empty()) listed.push_back(std::move(order));
  }
  return listed;
}

absl::Status Replication::ReportCopies(uint64_t lease_id, std::span<const CopyReport> reports) {
  absl::MutexLock lock(&mu_);
  HolderId holder;
  {
    absl::MutexLock tables_lock(&tables_.mu);
    CKV_RETURN_IF_ERROR(tables_.lead.Check());
    tables_.Expire();
    CKV_ASSIGN_OR_RETURN(const Lease* lease, tables_.leases.FindHolder(lease_id, reports.size()));
    holder = lease->member.id;
  }
  const Instant now = tables_.options.clock->Now();
  for (const CopyReport& report : reports) Take(holder, lease_id, report, now);
  absl::MutexLock tables_lock(&tables_.mu);
  CountOrders();
  return absl::OkStatus();
}

void Replication::Take(const HolderId& holder, uint64_t lease_id, const CopyReport& report,
                       Instant now) {
  const auto orders = orders_.find(holder);
  if (orders == orders_.end()) return;
  const auto order = std::find_if(orders->second.begin(), orders->second.end(),
                                  [&](uint32_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                                    const PlannedCopy& copy = plan_.copies[i];
                                    return copy.corpus->chunks[copy.ordinal].id == report.id &&
                                           KeyOf(*copy.corpus) == report.corpus;
                                  });
  if (order == orders->second.end()) return;
  const bool is_leased = plan_.copies[*order].is_leased;
  orders->second.erase(order);
  is_due_ = true;
  if (!report.error.empty()) {
    Log().warn("corpus \"{}\": holder {} could not copy chunk {}: {}", report.corpus.second,
               holder.name, report.id.ShortHex(), report.error);
    failures_.push_back({now + kFailurePause, report.corpus, report.id, holder});
    if (failures_.size() > kFailureCountMax) failures_.pop_front();
    return;
  }
  if (is_leased) {
    absl::MutexLock lock(&tables_.mu);
    hot_.Announce(tables_, holder, lease_id, report.corpus.first, report.id, now);
    return;
  }
  made_[report.corpus][report.id].push_back({holder, lease_id});
}

absl::Status Replication::CheckKnown(const HolderId& holder) const {
  const Lease* const lease = tables_.leases.FindMember(holder);
  const bool is_live = lease != nullptr && lease->member.role == MemberRole::kHolder;
  if (is_live || tables_.draining.contains(holder) || tables_.corpora.PlacedOn(holder) != nullptr)
    return absl::OkStatus();
  return absl::NotFoundError(absl::StrFormat("there is no holder \"%s\"", holder.name));
}

absl::Status Replication::SetDraining(const HolderId& holder, bool drain, Instant deadline) {
  deadline = tables_.LatestOf(deadline);
  const auto pending = std::make_shared<PendingChange>();
  auto change = std::make_shared<DirectoryChange>();
  change->kind = ChangeKind::kDrain;
  change->holder = holder.name;
  change->drains = drain;
  {
    absl::MutexLock lock(&tables_.mu);
    const CorpusKey key = KeyOf(*change);
    CKV_RETURN_IF_ERROR(tables_.AwaitTurn(key, deadline));
    CKV_RETURN_IF_ERROR(tables_.lead.Check());
    tables_.Expire();
    CKV_RETURN_IF_ERROR(CheckKnown(holder));
    if (tables_.draining.contains(holder) == drain) return absl::OkStatus();
    if (drain && tables_.draining.size() >= kMemberCountMax)
      return absl::ResourceExhaustedError("too many holders are drained");
    pending->number = tables_.numbers.last() + 1;  // it has none
    tables_.AddPending(key, pending);
  }
  CKV_RETURN_IF_ERROR(changes_.Commit(change, pending.get(), deadline));
  Log().info("holder {} is {}", holder.name, drain ? "drained from now on" : "drained no longer");
  return absl::OkStatus();
}

absl::StatusOr<Replication::DrainState> Replication::DrainOf(const HolderId& holder) {
  absl::MutexLock lock(&mu_);
  absl::MutexLock tables_lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  CKV_RETURN_IF_ERROR(CheckKnown(holder));
  DrainState state;
  state.is_draining = tables_.draining.contains(holder);
  state.chunk_count = tables_.corpora.CountPlacedOn(holder);
  const auto emptied = emptied_since_.find(holder);
  const bool is_empty = state.chunk_count == 0 || CKV_PLANTED_BUG("drain-before-copy");
  state.may_go = state.is_draining && is_empty && emptied != emptied_since_.end() &&
                 tables_.options.clock->Now() >= emptied->second + kDrainSettle;
  if (!state.is_draining || state.chunk_count == 0) return state;
  const auto planned = plan_.holders.find(holder);
  if (planned == plan_.holders.end()) return state;
  state.bytes_left = planned->second.leaving_bytes;
  state.stuck = planned->second.stuck;
  state.left = facts_.left;
  return state;
}

ReplicationFacts Replication::Facts() {
  absl::MutexLock lock(&mu_);
  ReplicationFacts facts = facts_;
  absl::MutexLock tables_lock(&tables_.mu);
  for (const HolderId& holder : tables_.draining) facts.draining.push_back(holder.name);
  return facts;
}

}  // namespace ckv
