#include "client/link_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"

namespace ckv {

absl::StatusOr<LinkTable::Route*> LinkTable::RouteOf(const std::shared_ptr<const Corpus>& corpus) {
  for (const auto& route : routes_) {
    if (route->corpus == corpus) {
      route->last_use = ++use_count_;
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
    // One round trip for all that this holder has of the corpus: the next call would need them.
    std::vector<ChunkId> ids = {wanted.id};
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (ids.size() >= HolderLink::kResolveCountMax) break;
      if (i != chunk && route.link_of_chunk[i] == route.link_of_chunk[chunk])
        ids.push_back(chunks[i].id);
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
  const absl::Status annotated = Annotate(status, link.peer().Describe());
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
