#include "client/link_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "proto/status.h"

namespace ckv {
namespace {

// Between two tries at a holder that is about to have a session again; doubles. 9 tries at most.
constexpr Duration kSessionReturnPauseMin = std::chrono::milliseconds(1);
constexpr Duration kSessionReturnMax = std::chrono::milliseconds(500);

}  // namespace

absl::StatusOr<LinkTable::Route*> LinkTable::RouteOf(const std::shared_ptr<const Corpus>& corpus) {
  now_ = options_->clock->Now();
  for (const auto& route : routes_) {
    if (route->corpus == corpus) {
      route->last_use = ++use_count_;
      CloseIdle(*route);
      return route.get();
    }
  }
  if (links_.size() >= kLinkCountMax) {
    routes_.clear();
    links_.clear();
  }
  auto route = std::make_unique<Route>();
  route->corpus = corpus;
  route->last_use = ++use_count_;
  CKV_RETURN_IF_ERROR(Fill(*route));
  CloseIdle(*route);
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
  route.link_of_chunk.assign(count, kNoLink);
  route.handles.assign(count, 0);
  route.generations.assign(count, 0);
  const HolderId* last_holder = nullptr;
  uint32_t last_link = kNoLink;
  for (size_t i = 0; i < count; ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    if (chunk.token_count == 0) continue;
    if (chunk.holders.empty()) {
      return absl::NotFoundError(absl::StrFormat("chunk %s: nobody holds it", chunk.id.ToHex()));
    }
    const HolderId& primary = chunk.holders.front();
    if (last_holder == nullptr || *last_holder != primary) {
      CKV_ASSIGN_OR_RETURN(HolderLink * link, LinkTo(primary, corpus));
      const auto place = std::find(route.links.begin(), route.links.end(), link);
      last_link = static_cast<uint32_t>(place - route.links.begin());
      if (place == route.links.end()) route.links.push_back(link);
      last_holder = &primary;
    }
    route.link_of_chunk[i] = last_link;
  }
  return absl::OkStatus();
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
  HolderLink& link = *route.links[route.link_of_chunk[chunk]];
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
      if (route.link_of_chunk[i] != route.link_of_chunk[chunk]) continue;
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

absl::Status HolderError(HolderLink& link, const absl::Status& status) {
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
