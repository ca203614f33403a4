#include "client/link_table.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/retry.h"
#include "proto/status.h"

namespace ckv {
namespace {

// Between two tries at a holder that is about to have a session again; doubles. 9 tries at most.
constexpr Duration kSessionReturnPauseMin = std::chrono::milliseconds(1);
constexpr Duration kSessionReturnMax = std::chrono::milliseconds(500);

}  // namespace

void LinkTable::BeginCall() {
  route_ = nullptr;
  failed_ = nullptr;
  tried_.clear();
}

absl::StatusOr<LinkTable::Route*> LinkTable::RouteOf(const std::shared_ptr<const Corpus>& corpus,
                                                     const ReplicaWork& work) {
  now_ = options_->clock->Now();
  route_ = nullptr;
  failed_ = nullptr;
  CKV_ASSIGN_OR_RETURN(route_, FindRoute(corpus));
  route_->last_use = ++use_count_;
  route_->primitive = work.primitive;
  if (route_->replicated) Choose(*route_, work);
  CloseIdle(*route_);
  return route_;
}

absl::StatusOr<LinkTable::Route*> LinkTable::FindRoute(
    const std::shared_ptr<const Corpus>& corpus) {
  for (const auto& route : routes_) {
    if (route->corpus == corpus) return route.get();
  }
  if (links_.size() >= kLinkCountMax) {
    routes_.clear();
    links_.clear();
  }
  auto route = std::make_unique<Route>();
  route->corpus = corpus;
  CKV_RETURN_IF_ERROR(Fill(*route));
  if (routes_.size() < kRouteCountMax) {
    routes_.push_back(std::move(route));
    return routes_.back().get();
  }
  const auto oldest =
      std::min_element(routes_.begin(), routes_.end(),
                       [](const auto& a, const auto& b) { return a->last_use < b->last_use; });
  *oldest = std::move(route);
  return oldest->get();
}

absl::Status LinkTable::Fill(Route& route) {
  const Corpus& corpus = *route.corpus;
  const size_t count = corpus.chunks.size();
  route.group_of_chunk.assign(count, kNoLink);
  route.handles.assign(count, 0);
  route.generations.assign(count, 0);
  const ChunkPlacement* last = nullptr;
  uint32_t last_group = kNoLink;
  absl::btree_map<std::vector<uint32_t>, uint32_t> group_of_links;
  for (size_t i = 0; i < count; ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    if (chunk.token_count == 0) continue;
    if (last == nullptr || last->holders != chunk.holders || last->leased != chunk.leased) {
      CKV_ASSIGN_OR_RETURN(std::vector<uint32_t> links, LinksOf(route, chunk));
      const auto [known, is_new] =
          group_of_links.try_emplace(std::move(links), uint32_t(route.groups.size()));
      if (is_new) route.groups.emplace_back().links = known->first;
      last = &chunk;
      last_group = known->second;
    }
    route.group_of_chunk[i] = last_group;
    route.groups[last_group].token_count += chunk.token_count;
    route.replicated |= route.groups[last_group].links.size() > 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> LinkTable::LinksOf(Route& route,
                                                         const ChunkPlacement& chunk) {
  if (chunk.holders.empty())
    return absl::NotFoundError(absl::StrFormat("chunk %s: nobody holds it", chunk.id.ToHex()));
  std::vector<uint32_t> ordinals;
  for (const std::vector<HolderId>* list : {&chunk.holders, &chunk.leased}) {
    for (const HolderId& holder : *list) {
      CKV_ASSIGN_OR_RETURN(HolderLink * link, LinkTo(holder, *route.corpus));
      const auto place = std::find(route.links.begin(), route.links.end(), link);
      ordinals.push_back(static_cast<uint32_t>(place - route.links.begin()));
      if (place == route.links.end()) route.links.push_back(link);
    }
  }
  return ordinals;
}

void LinkTable::Choose(Route& route, const ReplicaWork& work) {
  if (forced_ != nullptr) {
    for (ReplicaGroup& group : route.groups) {
      for (uint32_t i = 0; i < group.links.size(); ++i) {
        if (&route.links[group.links[i]]->peer() == forced_)
          group.chosen[size_t(work.primitive)] = i;
      }
    }
    route.rankings[size_t(work.primitive)].made = false;
    return;
  }
  ReplicaRanking& ranking = route.rankings[size_t(work.primitive)];
  const uint64_t avoid_count = peers_->avoid_count();
  if (tried_.empty() && ranking.made && now_ < ranking.next && ranking.avoid_count == avoid_count)
    return;
  ranking = {now_ + ReplicaChooser::kRankingAgeMax, avoid_count, true};
  // Those who failed this call are not to be asked again by it, but by the next.
  if (!tried_.empty()) ranking.made = false;
  chooser_.Look(route.corpus->geometry, work, route.links, *peers_, options_->shape,
                options_->oracle, now_, tried_);
  for (ReplicaGroup& group : route.groups) {
    if (group.links.size() > 1) chooser_.Choose(group);
  }
}

HolderLink& LinkTable::Ask(Route& route, uint32_t chunk) {
  route.groups[route.group_of_chunk[chunk]].asked = route.last_use;
  return *route.links[route.LinkOf(chunk)];
}

bool LinkTable::OthersCanBeAsked(const HolderPeer& peer,
                                 absl::FunctionRef<bool(const HolderPeer&)> may_ask) const {
  for (const ReplicaGroup& group : route_->groups) {
    if (group.asked != route_->last_use ||
        &route_->links[group.Chosen(route_->primitive)]->peer() != &peer) {
      continue;
    }
    const bool another = std::any_of(group.links.begin(), group.links.end(), [&](uint32_t link) {
      const HolderPeer& other = route_->links[link]->peer();
      return &other != &peer && !other.gone() && may_ask(other);
    });
    if (!another) return false;
  }
  return true;
}

bool LinkTable::FailOver(const absl::Status& status) {
  if (failed_ == nullptr || route_ == nullptr || !route_->replicated) return false;
  // Overload passes; the rest may last.
  peers_->Avoid(*failed_, options_->clock->Now(), RetryAfterOf(status));
  const auto may_ask = [&](const HolderPeer& other) {
    return std::find(tried_.begin(), tried_.end(), &other) == tried_.end();
  };
  if (!may_ask(*failed_)) return false;
  tried_.push_back(failed_);
  return OthersCanBeAsked(*failed_, may_ask);
}

void LinkTable::NoteSilent(HolderLink& link) {
  if (route_ != nullptr && route_->replicated)
    peers_->Avoid(link.peer(), options_->clock->Now(), std::nullopt);
}

void LinkTable::CloseIdle(const Route& route) {
  if (now_ < next_idle_look_) return;
  next_idle_look_ = std::min(CloseOneIdleBut(now_, route.links), now_ + kLinkIdleMax);
}

Instant LinkTable::CloseOneIdle(Instant now) { return CloseOneIdleBut(now, {}); }

Instant LinkTable::CloseOneIdleBut(Instant now, std::span<HolderLink* const> used) {
  Instant next_look = kInstantMax;
  HolderLink* idle = nullptr;
  for (const auto& link : links_) {
    if (!link->is_up()) continue;
    if (std::find(used.begin(), used.end(), link.get()) != used.end()) continue;
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
  link.set_last_use(now_);
  // A machine that went away does not even refuse: the others need time, too.
  const auto may_ask = [&](const HolderPeer& other) { return !other.avoided(now_); };
  if (!link.is_up() && route_ != nullptr && route_->replicated &&
      OthersCanBeAsked(link.peer(), may_ask)) {
    deadline = std::min(deadline, now_ + (deadline - now_) / 2);
  }
  absl::Status status = MakeUp(link, deadline);
  if (!status.ok()) failed_ = &link.peer();
  return status;
}

absl::Status LinkTable::MakeUp(HolderLink& link, Instant deadline) {
  absl::Status status = link.EnsureUp(deadline);
  if (!absl::IsResourceExhausted(status)) return status;
  // A call has one link to a holder, so none of the others is in use.
  HolderLink* oldest = nullptr;
  for (const auto& other : links_) {
    if (other.get() == &link || &other->peer() != &link.peer() || !other->is_up()) continue;
    if (oldest == nullptr || other->last_use() < oldest->last_use()) oldest = other.get();
  }
  if (oldest == nullptr) return status;
  oldest->Close();
  // The holder lets go of a session once its dispatcher has dropped the lane, a moment after.
  Clock& clock = *options_->clock;
  const Instant give_up = std::min(deadline, clock.Now() + kSessionReturnMax);
  for (Duration pause = kSessionReturnPauseMin;; pause *= 2) {
    absl::Status again = link.EnsureUp(deadline);
    const Instant now = clock.Now();
    if (!absl::IsResourceExhausted(again) || now >= give_up) return again;
    absl::Mutex mu;
    absl::MutexLock lock(&mu);
    const bool never = false;
    clock.Await(mu, absl::Condition(&never), std::min(give_up, now + pause));
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
      std::make_unique<HolderLink>(options_, peers_, peer, corpus.geometry, corpus.tenant));
  return links_.back().get();
}

absl::StatusOr<uint32_t> LinkTable::HandleOf(Route& route, uint32_t chunk, Instant deadline) {
  const uint32_t ordinal = route.LinkOf(chunk);
  HolderLink& link = *route.links[ordinal];
  if (route.generations[chunk] == link.generation()) return route.handles[chunk];
  const std::vector<ChunkPlacement>& chunks = route.corpus->chunks;
  const ChunkPlacement& wanted = chunks[chunk];
  if (link.Find(wanted.id) == nullptr) {
    // One round trip for what this holder has of the corpus, from here on and round: the next call
    // would need them.
    std::vector<ChunkId> ids;
    for (size_t step = 0; step < chunks.size(); ++step) {
      if (ids.size() >= HolderLink::kResolveCountMax) break;
      const size_t i = (chunk + step) % chunks.size();
      if (route.LinkOf(i) != ordinal) continue;
      if (link.Find(chunks[i].id) == nullptr) ids.push_back(chunks[i].id);
    }
    const absl::Status status = link.Resolve(ids, deadline);
    // NotFound may be another chunk's, which this call does not ask for.
    if (!status.ok() && (!absl::IsNotFound(status) || link.Find(wanted.id) == nullptr))
      return status;
  }
  const ResolvedHandle& resolved = *link.Find(wanted.id);
  if (resolved.token_count != wanted.token_count) {
    return absl::FailedPreconditionError(
        absl::StrFormat("has chunk %s with %d tokens, the directory says %d", wanted.id.ToHex(),
                        resolved.token_count, wanted.token_count));
  }
  route.handles[chunk] = resolved.handle.value;
  route.generations[chunk] = link.generation();
  return route.handles[chunk];
}

absl::Status LinkTable::Fail(HolderLink& link, const absl::Status& status) {
  failed_ = &link.peer();
  absl::Status annotated = Annotate(status, link.peer().Describe());
  // Its text ends with the hint already.
  status.ForEachPayload(
      [&](auto name, const absl::Cord& hint) { annotated.SetPayload(name, hint); });
  switch (NextActFor(status)) {
    case NextAct::kReopen:
    case NextAct::kResolveAgain:
      link.Close();
      break;
    default:
      // A peer that breaks the frames' rules is not spoken to again on this lane.
      if (absl::IsInvalidArgument(status)) link.Close();
      break;
  }
  return annotated;
}

}  // namespace ckv
