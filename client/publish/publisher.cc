// Appends chunks to a corpus. Extend calls ExtendOnce until no other change of the corpus
// interferes. ExtendOnce, in order: reads the corpus, or begins a new one; leaves out the chunks
// that it has; refuses texts that it has in another cut (CheckTexts); PutNew places and puts the
// others; Publish writes the corpus, if its version is the same as before; AwaitCorpusKept waits
// until its holders have recorded it. Runs on the caller's thread.

#include "client/publish/publisher.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "client/grpc/corpus_changes.h"
#include "client/publish/capacity_placement.h"
#include "client/publish/extension.h"
#include "client/publish/kept_parts.h"
#include "client/publish/text_overlap.h"
#include "proto/base/planted_bug.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {
namespace {

using Stub = DirectoryCaller::Stub;

constexpr Duration kCallTimeoutMax = std::chrono::seconds(10);
// Each retry means that someone else changed the corpus between the look at it and the change here.
constexpr int kAttemptCountMax = 16;

uint64_t EndPosition(const ChunkPlacement& chunk) { return chunk.position + chunk.token_count; }

void AddTo(PutReport& sum, const PutReport& more) {
  for (const auto& [name, tally] : more.tallies) {
    HolderTally& total = sum.tallies[name];
    total.copies_sent += tally.copies_sent;
    total.copies_found += tally.copies_found;
    total.bytes_sent += tally.bytes_sent;
    total.bytes_sent_found += tally.bytes_sent_found;
  }
  sum.digests.resize(more.digests.size());
  sum.found.resize(more.found.size());
  for (size_t i = 0; i < more.digests.size(); ++i) {
    if (more.digests[i] != 0) sum.digests[i] = more.digests[i];
    if (more.found[i]) sum.found[i] = true;
  }
}

uint32_t ReplicasOf(const ExtendTarget& target, const Corpus& corpus, size_t holder_count) {
  if (target.replicas > 0) return target.replicas;
  return static_cast<uint32_t>(std::clamp<size_t>(corpus.replica_count, 1, holder_count));
}

}  // namespace

uint64_t ExtendReport::bytes_sent() const {
  uint64_t sent = 0;
  for (const auto& [name, tally] : puts.tallies) sent += tally.bytes_sent;
  return sent;
}

Publisher::Publisher(std::string_view directory, Clock* clock)
    : clock_(*clock),
      reader_(directory, clock, /*for_calls=*/false),
      directory_(directory, clock) {}

Instant Publisher::CallDeadline(Instant deadline) const {
  return std::min(deadline, clock_.Now() + kCallTimeoutMax);
}

absl::StatusOr<Corpus> Publisher::GetCorpus(std::string_view name, std::string_view tenant,
                                            Instant deadline) {
  CKV_ASSIGN_OR_RETURN(Corpus corpus, reader_.GetCorpus(name, tenant, deadline));
  // A tenant reads the shared corpora, too. Chunks that it puts there would have ids of its own
  // key.
  if (corpus.tenant != tenant) {
    return absl::NotFoundError(absl::StrFormat(
        "tenant '%s' has no corpus '%s': the one that it reads is shared, and is extended by the "
        "shared tenant",
        tenant, name));
  }
  for (ChunkPlacement& chunk : corpus.chunks) chunk.set_leased({});  // reported, not published
  return corpus;
}

// Live holders only: DirectoryStub also returns holders that are not back yet.
absl::StatusOr<std::vector<Member>> Publisher::Holders(Instant deadline) {
  v1::ListMembersReply reply;
  CKV_RETURN_IF_ERROR(
      directory_.Call(&Stub::ListMembers, "ListMembers", {}, &reply, CallDeadline(deadline)));
  std::vector<Member> holders;
  for (const v1::Member& message : reply.members()) {
    CKV_ASSIGN_OR_RETURN(Member member, FromProto(message));
    if (member.role == MemberRole::kHolder) holders.push_back(std::move(member));
  }
  if (holders.empty()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the directory at %s has no live holder", directory_.addresses()));
  }
  std::sort(holders.begin(), holders.end(),
            [](const Member& a, const Member& b) { return a.id.name < b.id.name; });
  return holders;
}

absl::StatusOr<TenantKey> Publisher::KeyOf(std::string_view tenant, Instant deadline) {
  return ReadTenantKey(directory_, tenant, /*make=*/true, CallDeadline(deadline));
}

absl::StatusOr<CorpusEnd> Publisher::EndOf(std::string_view corpus, std::string_view tenant,
                                           const ChunkId& chunk, Instant deadline) {
  CKV_ASSIGN_OR_RETURN(const Corpus found, GetCorpus(corpus, tenant, deadline));
  CorpusEnd end;
  end.geometry = found.geometry;
  end.version = found.version;
  end.chunk_count = static_cast<uint32_t>(found.chunks.size());
  if (chunk.IsZero() && found.chunks.empty()) return end;
  const auto at = chunk.IsZero() ? found.chunks.end() - 1
                                 : std::find_if(found.chunks.begin(), found.chunks.end(),
                                                [&](const auto& one) { return one.id == chunk; });
  if (at == found.chunks.end()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("corpus '%s' has no chunk %s to go on from", corpus, chunk.ShortHex()));
  }
  end.chunk = at->id;
  end.position = EndPosition(*at);
  return end;
}

absl::StatusOr<std::optional<uint64_t>> Publisher::Publish(const Corpus& corpus, Instant deadline) {
  v1::PublishCorpusRequest request;
  *request.mutable_corpus() = ToProto(corpus);
  // Version 0 means that the corpus did not exist, and must still not exist.
  request.set_replace(corpus.version != 0);
  request.set_expected_version(corpus.version);
  v1::PublishCorpusReply reply;
  const absl::Status status = PublishCorpus(directory_, request, &reply, CallDeadline(deadline));
  if (absl::IsFailedPrecondition(status) || absl::IsAlreadyExists(status)) return std::nullopt;
  CKV_RETURN_IF_ERROR(status);
  return reply.version();
}

// The chunks that one Extend has put. Rows are read and sent once: a change of the corpus by others
// meanwhile moves none, and the next attempt finds its chunks placed.
struct Publisher::Putting {
  SourcePlacement placement;
  std::vector<Member> holders;  // the placed chunks go to these
  PutReport puts;
};

absl::Status Publisher::PutNew(const ExtendTarget& target, const Corpus& corpus,
                               std::span<const uint32_t> fresh, ChunkSource& chunks,
                               Instant deadline, const PutObserver& observer, Putting& putting) {
  putting.placement.resize(chunks.chunks().size());
  std::vector<uint32_t> unplaced;
  std::copy_if(fresh.begin(), fresh.end(), std::back_inserter(unplaced),
               [&](uint32_t i) { return putting.placement[i].empty(); });
  if (!unplaced.empty()) {
    CKV_ASSIGN_OR_RETURN(const std::vector<Member> holders, Holders(deadline));
    CKV_ASSIGN_OR_RETURN(
        SourcePlacement placement,
        PlaceByCapacity(chunks, unplaced, corpus.chunks.size(), holders,
                        ReplicasOf(target, corpus, holders.size()), clock_, deadline));
    // Each holder that is queried takes a thread, and a fleet may have thousands.
    const std::vector<Member> requested = PlacedOn(holders, placement);
    for (const uint32_t i : unplaced) putting.placement[i] = placement[i];
    if (CKV_PLANTED_BUG("early-publish")) placement[unplaced.back()].clear();
    CKV_ASSIGN_OR_RETURN(
        const PutReport puts,
        PutChunks(chunks, placement, requested, target.tenant, clock_, observer, deadline));
    AddTo(putting.puts, puts);
    putting.holders = PlacedOn(holders, putting.placement);
  }
  if (CKV_PLANTED_BUG("early-publish")) return absl::OkStatus();
  return CheckPuts(chunks, putting.placement, putting.holders, target.tenant, clock_, putting.puts,
                   deadline);
}

// Refuses texts that the corpus has, cut in another way. Most puts continue from a chunk, and query
// no holder.
absl::Status Publisher::CheckTexts(const ExtendTarget& target, const Corpus& corpus,
                                   std::span<const uint32_t> fresh, const ChunkSource& chunks,
                                   Instant deadline) {
  const bool begins_a_text = std::any_of(
      fresh.begin(), fresh.end(), [&](uint32_t i) { return chunks.chunks()[i].parent.IsZero(); });
  if (!begins_a_text || corpus.chunks.empty()) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(const TenantKey key, KeyOf(target.tenant, deadline));
  ReadTokens query_holders;  // made once, and only if one must be queried
  const ReadTokens query = [&](const ChunkPlacement& chunk) -> absl::StatusOr<ChunkText> {
    if (!query_holders) {
      CKV_ASSIGN_OR_RETURN(std::vector<Member> holders, Holders(deadline));
      query_holders =
          QueryHolders(std::move(holders), corpus.geometry, target.tenant, &clock_, deadline);
    }
    return query_holders(chunk);
  };
  return CheckNoTextTwice(corpus, chunks, fresh, key, query);
}

// Waits until all holders of the corpus keep a part of the new version. If the directory has a
// folder, there is nothing to wait for.
absl::Status Publisher::AwaitCorpusKept(const Corpus& corpus, Instant deadline) {
  v1::DescribeDirectoryReply home;
  CKV_RETURN_IF_ERROR(directory_.Call(&Stub::Describe, "Describe", {}, &home,
                                      std::min(deadline, clock_.Now() + kKeepTimeout)));
  if (!home.path().empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<Member>> members = Holders(deadline);
  if (!members.ok()) return members.status();
  return AwaitKept(HoldersOf(corpus.chunks), *members, clock_, deadline);
}

namespace {
// Refuses before the first row is sent what the directory would refuse at the end.
absl::Status CheckFits(const Corpus& corpus, const CorpusPolicy& wanted,
                       std::span<const uint32_t> fresh, const ChunkSource& chunks) {
  uint64_t tokens = 0;
  for (const uint32_t i : fresh) tokens += chunks.chunks()[i].token_count;
  return CheckQuota(corpus.name, corpus.row_bytes() + tokens * corpus.geometry.token_bytes(),
                    wanted.quota_bytes.value_or(corpus.policy.quota_bytes.value_or(0)));
}
}  // namespace

absl::StatusOr<std::optional<ExtendReport>> Publisher::ExtendOnce(const ExtendTarget& target,
                                                                  ChunkSource& chunks,
                                                                  Instant deadline,
                                                                  const PutObserver& observer,
                                                                  Putting& putting) {
  absl::StatusOr<Corpus> found = GetCorpus(target.corpus, target.tenant, deadline);
  Corpus corpus;
  if (found.ok()) {
    corpus = *std::move(found);
  } else if (absl::IsNotFound(found.status()) && target.create) {
    corpus.name = target.corpus;
    corpus.tenant = target.tenant;
    corpus.geometry = chunks.geometry();
  } else {
    return found.status();
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> fresh, NewChunks(corpus, chunks));
  CKV_RETURN_IF_ERROR(CheckTexts(target, corpus, fresh, chunks, deadline));
  ExtendReport report;
  report.version = corpus.version;
  report.chunk_begin = static_cast<uint32_t>(corpus.chunks.size());
  report.added_count = static_cast<uint32_t>(fresh.size());
  if (!fresh.empty()) {
    CKV_RETURN_IF_ERROR(CheckFits(corpus, target.policy, fresh, chunks));
    CKV_RETURN_IF_ERROR(PutNew(target, corpus, fresh, chunks, deadline, observer, putting));
    CKV_RETURN_IF_ERROR(chunks.CheckUnchanged());
    AppendChunks(chunks, fresh, putting.placement, corpus);
  }
  if (!fresh.empty() || !HasPolicy(corpus.policy, target.policy)) {
    corpus.policy = target.policy;
    CKV_ASSIGN_OR_RETURN(const std::optional<uint64_t> version, Publish(corpus, deadline));
    if (!version) return std::nullopt;
    report.version = *version;
  }
  // Waits for chunks that were already there too: they may be from a put whose answer was lost.
  report.kept = AwaitCorpusKept(corpus, deadline);
  report.puts = putting.puts;
  return report;
}

absl::StatusOr<ExtendReport> Publisher::Extend(const ExtendTarget& target, ChunkSource& chunks,
                                               Instant deadline, const PutObserver& observer) {
  if (chunks.chunks().empty()) return absl::InvalidArgumentError("there are no chunks to put");
  CKV_RETURN_IF_ERROR(ValidatePolicy(target.policy));
  Putting putting;
  for (int attempt = 0; attempt < kAttemptCountMax; ++attempt) {
    CKV_ASSIGN_OR_RETURN(std::optional<ExtendReport> report,
                         ExtendOnce(target, chunks, deadline, observer, putting));
    if (report) return *std::move(report);
  }
  return absl::AbortedError(absl::StrFormat(
      "corpus '%s' was changed by others %d times meanwhile; its chunks are put, so "
      "the same call again is short",
      target.corpus, kAttemptCountMax));
}

}  // namespace ckv
