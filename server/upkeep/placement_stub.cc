// The calls of the placement keeper to a directory in another process. Lists and reports are
// divided into pages: a list asks for pages until one is the last, a report sends pages with the
// same lease. Each call has the deadline of its round, and runs on the keeper's thread.

#include "server/upkeep/placement_stub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {
namespace {

// The news of a first page; other pages have none.
absl::Status TakeNews(const v1::ListPlacedCorporaReply& page, PlacementSource::Placed& placed) {
  if (!page.has_seen()) return absl::OkStatus();
  placed.seen = FromProto(page.seen());
  if (page.dropped_size() > static_cast<int>(kDroppedCountMax))
    return absl::InvalidArgumentError(absl::StrFormat("%d drops", page.dropped_size()));
  for (const v1::DroppedCorpus& message : page.dropped()) {
    CKV_ASSIGN_OR_RETURN(DroppedCorpus dropped, FromProto(message));
    placed.dropped.push_back(std::move(dropped));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlacementSource::Placed> PlacementStub::ListPlacedCorpora(const HolderId& holder,
                                                                         const SeenDirectory& seen,
                                                                         Instant deadline) {
  Placed placed;
  v1::ListPlacedCorporaRequest request;
  request.set_holder(holder.name);
  *request.mutable_seen() = ToProto(seen);
  v1::ListPlacedCorporaReply page;
  do {
    page.Clear();
    CKV_RETURN_IF_ERROR(
        directory_.Call(&Stub::ListPlacedCorpora, "ListPlacedCorpora", request, &page, deadline));
    CKV_RETURN_IF_ERROR(TakeNews(page, placed));
    if (page.corpora().empty()) break;
    for (const v1::CorpusSummary& corpus : page.corpora())
      placed.versions.emplace(CorpusParts::Key(corpus.tenant(), corpus.name()), corpus.version());
    const v1::CorpusSummary& last = page.corpora(page.corpora_size() - 1);
    // Each page begins behind the one before, so this ends.
    if (std::pair(last.tenant(), last.name()) <=
        std::pair(request.after_tenant(), request.after_name())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: pages out of order", Context("ListPlacedCorpora")));
    }
    request.set_after_tenant(last.tenant());
    request.set_after_name(last.name());
  } while (page.more());
  return placed;
}

absl::StatusOr<CorpusPart> PlacementStub::GetPart(const HolderId& holder,
                                                  const CorpusParts::Key& key, Instant deadline) {
  CorpusPart whole;
  v1::ListPlacedRequest request;
  request.set_holder(holder.name);
  request.set_tenant(key.first);
  request.set_name(key.second);
  v1::ListPlacedReply page;
  do {
    page.Clear();
    CKV_RETURN_IF_ERROR(directory_.Call(&Stub::ListPlaced, "ListPlaced", request, &page, deadline));
    auto part = FromProto(page.part());
    if (!part.ok()) return Annotate(part.status(), Context("ListPlaced"));
    const bool first = request.first_ordinal() == 0;
    if (!first && part->corpus.version != whole.corpus.version)
      return absl::AbortedError(absl::StrFormat("%s: changed meanwhile", Context("ListPlaced")));
    if (page.more() && page.next_ordinal() <= request.first_ordinal()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: pages out of order", Context("ListPlaced")));
    }
    if (first) {
      whole = *std::move(part);
    } else {
      std::move(part->corpus.chunks.begin(), part->corpus.chunks.end(),
                std::back_inserter(whole.corpus.chunks));
      whole.ordinals.insert(whole.ordinals.end(), part->ordinals.begin(), part->ordinals.end());
    }
    request.set_first_ordinal(page.next_ordinal());
  } while (page.more());
  if (auto valid = ValidateCorpusPart(whole); !valid.ok())
    return Annotate(valid, Context("ListPlaced"));
  return whole;
}

absl::StatusOr<bool> PlacementStub::ReportPart(uint64_t lease_id, const CorpusPart& part,
                                               Instant deadline) {
  CorpusPart page = part;
  for (size_t begin = 0; begin < part.ordinals.size(); begin += kPartChunksPerCallMax) {
    const size_t end = std::min(part.ordinals.size(), begin + kPartChunksPerCallMax);
    page.corpus.chunks.assign(part.corpus.chunks.begin() + static_cast<ptrdiff_t>(begin),
                              part.corpus.chunks.begin() + static_cast<ptrdiff_t>(end));
    page.ordinals.assign(part.ordinals.begin() + static_cast<ptrdiff_t>(begin),
                         part.ordinals.begin() + static_cast<ptrdiff_t>(end));
    v1::ReportPartRequest request;
    request.set_lease_id(lease_id);
    *request.mutable_part() = ToProto(page);
    v1::ReportPartReply reply;
    CKV_RETURN_IF_ERROR(
        directory_.Call(&Stub::ReportPart, "ReportPart", request, &reply, deadline));
    if (reply.superseded()) return true;
  }
  return false;
}

absl::StatusOr<bool> PlacementStub::ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                                                  std::span<const DroppedCorpus> dropped,
                                                  Instant deadline) {
  v1::ReportDroppedRequest request;
  request.set_lease_id(lease_id);
  *request.mutable_seen() = ToProto(seen);
  for (const DroppedCorpus& one : dropped) *request.add_dropped() = ToProto(one);
  v1::ReportDroppedReply reply;
  CKV_RETURN_IF_ERROR(
      directory_.Call(&Stub::ReportDropped, "ReportDropped", request, &reply, deadline));
  return reply.wanted();
}

absl::Status PlacementStub::ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                                          Instant deadline) {
  return ForEachPage(ids, [&](std::span<const ChunkId> page, bool first, bool last) {
    v1::ReportLackingRequest request;
    request.set_lease_id(lease_id);
    for (const ChunkId& id : page) request.add_ids(std::string(id.AsBytes()));
    request.set_first(first);
    request.set_last(last);
    v1::ReportLackingReply reply;
    return directory_.Call(&Stub::ReportLacking, "ReportLacking", request, &reply, deadline);
  });
}

absl::StatusOr<std::vector<uint32_t>> PlacementStub::CountReferences(const HolderId& holder,
                                                                     std::span<const ChunkId> ids,
                                                                     Instant deadline) {
  v1::CountReferencesRequest request;
  request.set_holder(holder.name);
  for (const ChunkId& id : ids) request.add_ids(std::string(id.AsBytes()));
  v1::CountReferencesReply reply;
  CKV_RETURN_IF_ERROR(
      directory_.Call(&Stub::CountReferences, "CountReferences", request, &reply, deadline));
  if (reply.counts_size() != request.ids_size()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %d counts of %d chunks",
                                                      Context("CountReferences"),
                                                      reply.counts_size(), request.ids_size()));
  }
  return std::vector<uint32_t>(reply.counts().begin(), reply.counts().end());
}

absl::Status PlacementStub::FinishReport(uint64_t lease_id, Instant deadline) {
  v1::ReportPartRequest request;
  request.set_lease_id(lease_id);
  v1::ReportPartReply reply;
  return directory_.Call(&Stub::ReportPart, "ReportPart", request, &reply, deadline);
}

std::string PlacementStub::Context(std::string_view call) const {
  return absl::StrFormat("directory %s: %s", directory_.addresses(), call);
}

}  // namespace ckv
