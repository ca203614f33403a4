// A call uses the table in this order: BeginCall; LinksFor, which chooses replicas; then per link
// EnsureUp and HandleOf. A failure is passed to Fail. Then Reopen and FailOver return whether to
// try again, and LinksFor begins the next attempt.

#include "client/holders/link_table.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "client/holders/lane_pinning.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// The first pause between two tries at a holder that will soon have a session again. It doubles, so
// there are at most 9 tries.
constexpr Duration kSessionReturnPauseMin = std::chrono::milliseconds(1);
constexpr Duration kSessionReturnMax = std::chrono::milliseconds(500);

}  // namespace

void LinkTable::BeginCall() {
  AssertHeld();
  current_.clear();
  failed_ = nullptr;
  reopened_.clear();
  tried_.clear();
  set_may_wait(true);
  wait_end_ = kInstantMax;
  if (!late_.empty()) ReadLate();
}

void LinkTable::BeginAttempt() {
  AssertHeld();
  now_ = options_->clock->Now();
  current_.clear();
  failed_ = nullptr;
  silent_ = false;
  ++use_count_;
}

absl::StatusOr<LinkTable::ChunkLinks*> LinkTable::LinksFor(
    const std::shared_ptr<const Corpus>& corpus, const ReplicaWork& work) {
  BeginAttempt();
  CKV_ASSIGN_OR_RETURN(ChunkLinks * chunk_links, AddCorpus(corpus, work));
  Tidy();
  return chunk_links;
}

absl::StatusOr<LinkTable::ChunkLinks*> LinkTable::AddCorpus(
    const std::shared_ptr<const Corpus>& corpus, const ReplicaWork& work) {
  AssertHeld();
  // Most segments of a call share one.
  if (!current_.empty() && current_.back()->corpus == corpus) return current_.back();
  CKV_ASSIGN_OR_RETURN(ChunkLinks * chunk_links, FindLinks(corpus));
  if (chunk_links->last_use == use_count_) return chunk_links;
  chunk_links->last_use = use_count_;
  chunk_links->primitive = work.primitive;
  current_.push_back(chunk_links);
  if (chunk_links->replicated) Choose(*chunk_links, work);
  return chunk_links;
}

absl::StatusOr<LinkTable::ChunkLinks*> LinkTable::FindLinks(
    const std::shared_ptr<const Corpus>& corpus) {
  for (const auto& chunk_links : corpora_) {
    if (chunk_links->corpus == corpus) return chunk_links.get();
  }
  if (links_.size() >= kLinkCountMax && current_.empty()) {
    corpora_.clear();
    late_.clear();
    links_.clear();
  }
  auto chunk_links = std::make_unique<ChunkLinks>();
  chunk_links->corpus = corpus;
  CKV_RETURN_IF_ERROR(Fill(*chunk_links));
  if (corpora_.size() < kCorpusCountMax) {
    corpora_.push_back(std::move(chunk_links));
    return corpora_.back().get();
  }
  const auto oldest =
      std::min_element(corpora_.begin(), corpora_.end(),
                       [](const auto& a, const auto& b) { return a->last_use < b->last_use; });
  if ((*oldest)->last_use == use_count_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a call over more than %d corpora: make several", kCorpusCountMax));
  }
  *oldest = std::move(chunk_links);
  return oldest->get();
}

absl::Status LinkTable::Fill(ChunkLinks& chunk_links) {
  const Corpus& corpus = *chunk_links.corpus;
  const size_t count = corpus.chunks.size();
  chunk_links.group_of_chunk.assign(count, kNoLink);
  chunk_links.handles.assign(count, 0);
  chunk_links.generations.assign(count, 0);
  const ChunkPlacement* last = nullptr;
  uint32_t last_group = kNoLink;
  absl::btree_map<std::vector<uint32_t>, uint32_t> group_of_links;
  for (size_t i = 0; i < count; ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    if (chunk.token_count == 0) continue;
    if (last == nullptr || !last->HasMembersOf(chunk)) {
      CKV_ASSIGN_OR_RETURN(std::vector<uint32_t> links, OrdinalsOf(chunk_links, chunk));
      const auto [known, is_new] =
          group_of_links.try_emplace(std::move(links), uint32_t(chunk_links.groups.size()));
      if (is_new) {
        ReplicaGroup& group = chunk_links.groups.emplace_back();
        group.links = known->first;
        // Groups of one corpus start at different replicas, and so do call contexts.
        group.first = (first_turn_ + known->second) % static_cast<uint32_t>(group.links.size());
      }
      last = &chunk;
      last_group = known->second;
    }
    chunk_links.group_of_chunk[i] = last_group;
    chunk_links.groups[last_group].token_count += chunk.token_count;
    chunk_links.replicated |= chunk_links.groups[last_group].links.size() > 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> LinkTable::OrdinalsOf(ChunkLinks& chunk_links,
                                                            const ChunkPlacement& chunk) {
  if (chunk.holders().empty())
    return absl::NotFoundError(absl::StrFormat("chunk %s: no holder has it", chunk.id.ToHex()));
  std::vector<uint32_t> ordinals;
  for (const std::vector<HolderId>* list : {&chunk.holders(), &chunk.leased()}) {
    for (const HolderId& holder : *list) {
      CKV_ASSIGN_OR_RETURN(HolderLink * link, LinkTo(holder, *chunk_links.corpus));
      const auto place = std::find(chunk_links.links.begin(), chunk_links.links.end(), link);
      ordinals.push_back(static_cast<uint32_t>(place - chunk_links.links.begin()));
      if (place == chunk_links.links.end()) chunk_links.links.push_back(link);
    }
  }
  return ordinals;
}

void LinkTable::Choose(ChunkLinks& chunk_links, const ReplicaWork& work) {
  if (forced_ != nullptr) {
    for (ReplicaGroup& group : chunk_links.groups) {
      const uint32_t place = chunk_links.PlaceOf(group, *forced_);
      if (place != kNoLink) group.chosen[size_t(work.primitive)] = place;
    }
    chunk_links.rankings[size_t(work.primitive)] = {};
    return;
  }
  ReplicaRanking& ranking = chunk_links.rankings[size_t(work.primitive)];
  const uint64_t avoid_count = peers_->avoid_count();
  peers_->Hear();
  const uint64_t target_count = peers_->target_count();
  const bool one_target = work.primitive == Primitive::kRoute && work.wire == PartialDtype::kF32;
  if (tried_.empty() && ranking.made && now_ < ranking.next && ranking.avoid_count == avoid_count &&
      ranking.target_count == target_count && ranking.one_target == one_target) {
    if (ranking.calls_left-- > 0) return;
    for (ReplicaGroup& group : chunk_links.groups) ReplicaChooser::NextTurn(group, work.primitive);
    ranking.calls_left = ReplicaChooser::TurnCalls(work.primitive) - 1;
    return;
  }
  ranking = {
      now_ + ReplicaChooser::kRankingAgeMax,        avoid_count, target_count, true, one_target,
      ReplicaChooser::TurnCalls(work.primitive) - 1};
  // The choice avoids holders that failed this call, so the next call must choose again.
  if (!tried_.empty()) ranking.made = false;
  chooser_.Look(chunk_links.corpus->geometry, work, chunk_links.links, *peers_, options_->shape,
                options_->oracle, now_, tried_);
  if (one_target) {
    chooser_.KeepToOneTarget(chunk_links.groups,
                             KernelTargetIdOf(options_->backend->kernel_target()));
  }
  for (ReplicaGroup& group : chunk_links.groups) {
    if (group.links.size() > 1) chooser_.Choose(group);
  }
}

bool LinkTable::TargetsChanged() const {
  return std::any_of(current_.begin(), current_.end(), [&](const ChunkLinks* corpus) {
    const ReplicaRanking& ranking = corpus->rankings[size_t(corpus->primitive)];
    return ranking.one_target && ranking.target_count != peers_->target_count();
  });
}

HolderLink& LinkTable::Choose(ChunkLinks& chunk_links, uint32_t chunk, bool must_be_chosen) {
  ReplicaGroup& group = chunk_links.groups[chunk_links.group_of_chunk[chunk]];
  HolderLink& chosen = *chunk_links.links[group.Chosen(chunk_links.primitive)];
  // All chunks of a group have the same holder in an attempt, and a link that the attempt already
  // uses stays as it is: if it breaks meanwhile, the attempt fails there.
  const bool first = std::exchange(group.requested, chunk_links.last_use) != chunk_links.last_use;
  if (!first || group.links.size() == 1 || forced_ != nullptr || must_be_chosen) return chosen;
  if (chosen.last_attempt() == use_count_ || chosen.IsUsable()) return chosen;
  return chosen.may_open_later() ? UseOpen(chunk_links, group) : chosen;
}

HolderLink* LinkTable::ChooseAt(ChunkLinks& chunk_links, uint32_t chunk, const HolderPeer& holder) {
  ReplicaGroup& group = chunk_links.groups[chunk_links.group_of_chunk[chunk]];
  uint32_t& chosen = group.chosen[size_t(chunk_links.primitive)];
  const uint32_t place = chunk_links.PlaceOf(group, holder);
  const bool failed = std::find(tried_.begin(), tried_.end(), &holder) != tried_.end();
  const bool first = std::exchange(group.requested, chunk_links.last_use) != chunk_links.last_use;
  if (place == kNoLink || failed || (!first && chosen != place)) return nullptr;
  chosen = place;
  return chunk_links.links[group.links[place]];
}

HolderLink& LinkTable::UseOpen(ChunkLinks& chunk_links, ReplicaGroup& group) {
  uint32_t& ordinal = group.chosen[size_t(chunk_links.primitive)];
  const uint32_t down = group.links[ordinal];
  HolderLink& chosen = *chunk_links.links[down];
  const bool one_target = chunk_links.rankings[size_t(chunk_links.primitive)].one_target;
  const auto may_answer = [&](HolderLink& other) {
    const HolderPeer& peer = other.peer();
    return other.IsUsable() && !peer.gone() && peer.avoidance.until() <= now_ &&
           std::find(tried_.begin(), tried_.end(), &peer) == tried_.end() &&
           (!one_target || peer.model.target() == chosen.peer().model.target());
  };
  for (uint32_t step = 0; step < group.links.size(); ++step) {
    const uint32_t i = (group.first + step) % static_cast<uint32_t>(group.links.size());
    HolderLink& other = *chunk_links.links[group.links[i]];
    if (i == ordinal || !may_answer(other)) continue;
    if (!chosen.OpenLater([&] { return chunk_links.IdsAt(down, HolderLink::kResolveCountMax); }))
      return chosen;
    ordinal = i;
    return other;
  }
  return chosen;
}

bool LinkTable::OthersCanBeTried(const HolderPeer& peer,
                                 absl::FunctionRef<bool(const HolderPeer&)> may_query) const {
  for (const ChunkLinks* corpus : current_) {
    for (const ReplicaGroup& group : corpus->groups) {
      if (group.requested != corpus->last_use ||
          &corpus->links[group.Chosen(corpus->primitive)]->peer() != &peer) {
        continue;
      }
      const bool another = std::any_of(group.links.begin(), group.links.end(), [&](uint32_t link) {
        const HolderPeer& other = corpus->links[link]->peer();
        return &other != &peer && may_query(other);
      });
      if (!another) return false;
    }
  }
  return true;
}

bool LinkTable::Reopen() {
  AssertHeld();
  if (failed_ == nullptr || !session_failed_) return false;
  const auto count = std::count(reopened_.begin(), reopened_.end(), failed_);
  if (count >= (epoch_moved_ ? kEpochReopenMax : 1)) return false;
  reopened_.push_back(failed_);
  return true;
}

bool LinkTable::FailOver(const absl::Status& status) {
  AssertHeld();
  if (failed_ == nullptr || !AnyReplicated()) return false;
  // An overloaded holder reports how long to avoid it. Other failures may last longer.
  if (!silent_) peers_->Avoid(*failed_, options_->clock->Now(), RetryAfterOf(status));
  // A holder that the directory does not list may be back already, so it is tried too, as the last.
  const auto may_query = [&](const HolderPeer& other) {
    return std::find(tried_.begin(), tried_.end(), &other) == tried_.end();
  };
  if (!may_query(*failed_)) return false;
  tried_.push_back(failed_);
  return OthersCanBeTried(*failed_, may_query);
}

void LinkTable::NoteSilent(HolderLink& link) {
  AssertHeld();
  failed_ = &link.peer();
  session_failed_ = false;
  silent_ = true;
  if (AnyReplicated()) peers_->Avoid(link.peer(), options_->clock->Now(), std::nullopt);
}

void LinkTable::AvoidLate(HolderLink& link) {
  AssertHeld();
  if (std::find(late_.begin(), late_.end(), &link) == late_.end()) late_.push_back(&link);
  // Another late call does not make the pause longer.
  const Instant now = options_->clock->Now();
  if (link.peer().avoidance.until() <= now) peers_->Avoid(link.peer(), now, std::nullopt);
}

// Once no request of an earlier call is without a reply, the holder is not silent any more. A
// broken lane shows nothing.
void LinkTable::ReadLate() {
  std::erase_if(late_, [](HolderLink* link) {
    if (!link->is_up() || !link->lane().status().ok()) return true;
    link->ReadLate();
    if (link->lane().in_flight() > 0) return false;
    link->peer().avoidance.End();
    return true;
  });
}

bool LinkTable::OthersMayAnswer(const HolderPeer& peer) const {
  if (!AnyReplicated()) return false;
  const Instant now = options_->clock->Now();
  return OthersCanBeTried(peer, [&](const HolderPeer& other) {
    return std::find(tried_.begin(), tried_.end(), &other) == tried_.end() && !other.gone() &&
           other.avoidance.until() <= now;
  });
}

bool LinkTable::AnyReplicated() const {
  return std::any_of(current_.begin(), current_.end(),
                     [](const ChunkLinks* corpus) { return corpus->replicated; });
}

bool LinkTable::Used(const HolderLink& link) const {
  return std::any_of(current_.begin(), current_.end(), [&](const ChunkLinks* corpus) {
    return std::find(corpus->links.begin(), corpus->links.end(), &link) != corpus->links.end();
  });
}

void LinkTable::Tidy() {
  AssertHeld();
  if (now_ < next_idle_look_) return;
  next_idle_look_ = std::min(CloseIdleLink(now_), now_ + kLinkIdleMax);
}

Instant LinkTable::CloseOneIdle(Instant now) {
  AssertHeld();
  current_.clear();
  return CloseIdleLink(now);
}

Instant LinkTable::CloseIdleLink(Instant now) {
  Instant next_look = kInstantMax;
  HolderLink* idle = nullptr;
  for (const auto& link : links_) {
    if (Used(*link)) continue;
    (void)link->IsUsable();  // takes a session that was opened for it
    if (!link->is_up()) continue;
    if (idle == nullptr && now - link->last_use() >= kLinkIdleMax) {
      idle = link.get();
    } else {
      next_look = std::min(next_look, link->last_use() + kLinkIdleMax);
    }
  }
  if (idle != nullptr) idle->Close();
  return next_look;
}

absl::Status LinkTable::EnsureUp(HolderLink& link, Instant deadline) {
  AssertHeld();
  link.set_last_use(now_, use_count_);
  deadline = std::min(deadline, wait_end_);
  if (!may_wait_) return link.IsUsable() ? absl::OkStatus() : RefuseToWait();
  // A machine that is gone does not even refuse a connection, so time is left for the other
  // holders.
  const auto may_query = [&](const HolderPeer& other) {
    return !other.gone() && other.avoidance.until() <= now_;
  };
  if (AnyReplicated() && !link.IsUsable() && OthersCanBeTried(link.peer(), may_query)) {
    const Instant now = options_->clock->Now();  // earlier links of this attempt took time, too
    deadline = std::min({deadline, now + (deadline - now) / 2, now + kOpenMax});
  }
  absl::Status status = MakeUp(link, deadline);
  if (!status.ok()) {
    // No other holder helps if this process cannot pin.
    failed_ = IsPinFailure(status) ? nullptr : &link.peer();
    session_failed_ = false;
  }
  return status;
}

absl::Status LinkTable::RefuseToWait() {
  would_wait_ = true;
  return absl::UnavailableError("the next step may wait for a holder");
}

absl::Status LinkTable::MakeUp(HolderLink& link, Instant deadline) {
  absl::Status status = link.EnsureUp(deadline);
  if (!absl::IsResourceExhausted(status)) return status;
  // A call over corpora of several tenants has several links to a holder: those are in use.
  HolderLink* oldest = nullptr;
  for (const auto& other : links_) {
    if (other.get() == &link || &other->peer() != &link.peer() || Used(*other)) continue;
    (void)other->IsUsable();  // takes a session that was opened for it
    if (!other->is_up()) continue;
    if (oldest == nullptr || other->last_use() < oldest->last_use()) oldest = other.get();
  }
  if (oldest == nullptr) return status;
  oldest->Close();
  // The holder frees the session a moment later, once its dispatcher has dropped the lane.
  Clock& clock = *options_->clock;
  const Instant give_up = std::min(deadline, clock.Now() + kSessionReturnMax);
  for (Duration pause = kSessionReturnPauseMin;; pause *= 2) {
    absl::Status again = link.EnsureUp(deadline);
    const Instant now = clock.Now();
    if (!absl::IsResourceExhausted(again) || now >= give_up) return again;
    clock.WaitUntil(std::min(give_up, now + pause));
  }
}

absl::StatusOr<HolderLink*> LinkTable::LinkTo(const HolderId& holder, const Corpus& corpus) {
  CKV_ASSIGN_OR_RETURN(HolderPeer * peer, peers_->Find(holder));
  for (const auto& link : links_) {
    if (link->Serves(peer, corpus.geometry, corpus.tenant)) return link.get();
  }
  if (links_.size() >= 2 * kLinkCountMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a corpus on more than %d holders", kLinkCountMax));
  }
  links_.push_back(
      std::make_unique<HolderLink>(options_, peers_, peer, corpus.geometry, corpus.tenant, &role_));
  return links_.back().get();
}

absl::StatusOr<uint32_t> LinkTable::HandleOf(ChunkLinks& chunk_links, uint32_t chunk,
                                             Instant deadline) {
  AssertHeld();
  const uint32_t ordinal = chunk_links.LinkOf(chunk);
  HolderLink& link = *chunk_links.links[ordinal];
  if (chunk_links.generations[chunk] == link.generation()) return chunk_links.handles[chunk];
  const std::vector<ChunkPlacement>& chunks = chunk_links.corpus->chunks;
  const ChunkPlacement& wanted = chunks[chunk];
  if (link.Find(wanted.id) == nullptr) {
    if (!may_wait_) return RefuseToWait();
    // Resolves what this holder has of the corpus in one round trip, beginning here, because the
    // next call would need it.
    std::vector<ChunkId> ids;
    for (size_t step = 0; step < chunks.size(); ++step) {
      if (ids.size() >= HolderLink::kResolveCountMax) break;
      const size_t i = (chunk + step) % chunks.size();
      if (chunk_links.LinkOf(i) != ordinal) continue;
      if (link.Find(chunks[i].id) == nullptr) ids.push_back(chunks[i].id);
    }
    absl::Status status = link.Resolve(ids, std::min(deadline, wait_end_));
    // NotFound may be about another chunk, which this call does not request.
    if (!status.ok() && (!absl::IsNotFound(status) || link.Find(wanted.id) == nullptr))
      return status;
  }
  const ResolvedHandle& resolved = *link.Find(wanted.id);
  if (resolved.token_count != wanted.token_count) {
    return absl::FailedPreconditionError(
        absl::StrFormat("has chunk %s with %d tokens, the directory has it with %d",
                        wanted.id.ToHex(), resolved.token_count, wanted.token_count));
  }
  chunk_links.handles[chunk] = resolved.handle.value;
  chunk_links.generations[chunk] = link.generation();
  return chunk_links.handles[chunk];
}

void LinkTable::CloseAfterWork(HolderLink& link) {
  if (stream_ != nullptr) stream_->Wait().IgnoreError();
  link.Close();
}

absl::Status LinkTable::Fail(HolderLink& link, const absl::Status& status) {
  AssertHeld();
  if (would_wait_) return status;
  failed_ = &link.peer();
  session_failed_ = false;
  epoch_moved_ = absl::IsAborted(status);
  absl::Status annotated = Annotate(status, link.peer().Describe());
  // The text already ends with the hint.
  status.ForEachPayload(
      [&](auto name, const absl::Cord& hint) { annotated.SetPayload(name, hint); });
  switch (NextActFor(status)) {
    case NextAct::kReopen:
    case NextAct::kResolveAgain:
      CloseAfterWork(link);
      session_failed_ = true;
      break;
    default:
      // A peer that breaks the rules of frames gets no other request on this lane.
      if (absl::IsInvalidArgument(status)) CloseAfterWork(link);
      break;
  }
  return annotated;
}

absl::Status LinkTable::FailLane(HolderLink& link, const absl::Status& status) {
  absl::Status failed =
      Fail(link, Annotate(absl::DataLossError(status.message()), "a damaged answer"));
  if (would_wait_) return failed;
  CloseAfterWork(link);
  session_failed_ = true;
  return failed;
}

}  // namespace ckv
