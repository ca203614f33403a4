#include "client/tools/ctl/corpus/put_load.h"

#include <memory>
#include <numeric>
#include <utility>

#include "client/publish/capacity_placement.h"
#include "client/publish/extension.h"
#include "client/publish/kept_parts.h"
#include "client/publish/publisher.h"
#include "client/tools/ctl/corpus/publish_corpus.h"
#include "client/tools/ctl/fleet/kept_change.h"
#include "client/tools/ctl/fleet/orphans.h"
#include "proto/base/status.h"
#include "store/corpus/placement.h"

namespace ckv::ctl {
namespace {

Corpus MakeCorpus(const Ctl& ctl, const LoadTarget& target, const ChunkSource& source,
                  const SourcePlacement& placement) {
  Corpus corpus;
  corpus.name = target.name;
  corpus.tenant = ctl.fleet.tenant;
  corpus.geometry = source.geometry();
  corpus.replica_count = target.replicas;
  corpus.policy = target.policy;
  std::vector<uint32_t> all(source.chunks().size());
  std::iota(all.begin(), all.end(), 0u);
  AppendChunks(source, all, placement, corpus);
  return corpus;
}

// Says how far `bytes` of rows are while it lives.
struct RowProgress {
  RowProgress(const Ctl& ctl, const LoadTarget& target, uint64_t bytes)
      : shown(ctl.StartProgress(target.dry_run ? "read" : "put", "B", bytes * target.replicas)),
        observer{[this](uint64_t sent) { shown->Advance(sent); },
                 [this](uint64_t found) { shown->Skip(found); }} {}
  RowProgress(const RowProgress&) = delete;
  RowProgress& operator=(const RowProgress&) = delete;

  const std::unique_ptr<Progress> shown;
  const PutObserver observer;
};

}  // namespace

std::vector<HolderId> UndrainedIdsOf(const std::vector<Member>& holders) {
  std::vector<HolderId> ids;
  for (const Member& holder : holders) {
    if (!holder.is_draining) ids.push_back(holder.id);
  }
  return ids;
}

absl::StatusOr<SourcePlacement> PlaceAll(const ChunkSource& source,
                                         const std::vector<Member>& holders, uint32_t replicas,
                                         Clock& clock) {
  std::vector<uint32_t> all(source.chunks().size());
  std::iota(all.begin(), all.end(), 0u);
  return PlaceByCapacity(source, all, 0, holders, replicas, clock, kInstantMax);
}

absl::StatusOr<Loaded> PutAndPublish(const Ctl& ctl, const LoadTarget& target, Fleet& fleet,
                                     ChunkSource& source, const std::vector<Member>& holders) {
  CKV_ASSIGN_OR_RETURN(const SourcePlacement placement,
                       PlaceAll(source, holders, target.replicas, *ctl.clock));
  const Corpus corpus = MakeCorpus(ctl, target, source, placement);
  CKV_RETURN_IF_ERROR(ValidateCorpus(corpus));
  Loaded loaded;
  {
    const RowProgress progress(ctl, target, source.row_bytes());
    if (target.dry_run) {
      CKV_ASSIGN_OR_RETURN(loaded.put, PlanPuts(source, placement, holders, ctl.fleet.tenant,
                                                *ctl.clock, progress.observer));
      return loaded;
    }
    CKV_ASSIGN_OR_RETURN(loaded.put, PutChunks(source, placement, holders, ctl.fleet.tenant,
                                               *ctl.clock, progress.observer));
    CKV_RETURN_IF_ERROR(
        CheckPuts(source, placement, holders, ctl.fleet.tenant, *ctl.clock, loaded.put));
  }
  CKV_RETURN_IF_ERROR(source.CheckUnchanged());
  CKV_ASSIGN_OR_RETURN(const v1::PublishCorpusReply published,
                       PublishCorpus(fleet, corpus, target.replace));
  loaded.version = published.version();
  std::vector<std::string> warnings;
  const std::string late = AwaitKeptBy(fleet, corpus.name, corpus.chunks);
  if (!late.empty()) warnings.push_back(late);
  CKV_RETURN_IF_ERROR(DropOrphans(fleet, published.orphans(), warnings).status());
  for (const std::string& warning : warnings) ctl.Note("ckvctl: warning: " + warning);
  return loaded;
}

absl::StatusOr<Loaded> PutAndExtend(const Ctl& ctl, const LoadTarget& target, Fleet& fleet,
                                    ChunkSource& source, const std::vector<Member>& holders,
                                    const CutOptions& cut) {
  Corpus corpus = *cut.extended;
  // Refuses before the first row is read, as the directory would at the end.
  CKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> fresh, NewToCorpus(cut, source));
  const auto size = static_cast<uint32_t>(corpus.chunks.size());
  CKV_ASSIGN_OR_RETURN(
      const SourcePlacement placement,
      PlaceByCapacity(source, fresh, size, holders, target.replicas, *ctl.clock, kInstantMax));
  AppendChunks(source, fresh, placement, corpus);
  CKV_RETURN_IF_ERROR(ValidateCorpus(corpus));
  uint64_t bytes = 0;
  for (const uint32_t i : fresh)
    bytes += source.chunks()[i].token_count * uint64_t{source.geometry().token_bytes()};
  const RowProgress progress(ctl, target, bytes);
  if (target.dry_run) {
    CKV_ASSIGN_OR_RETURN(PutReport planned,
                         PlanPuts(source, placement, PlacedOn(holders, placement), ctl.fleet.tenant,
                                  *ctl.clock, progress.observer));
    return Loaded{std::move(planned), 0, size, static_cast<uint32_t>(fresh.size())};
  }
  Publisher publisher(fleet.directory_address(), ctl.clock);
  const ExtendTarget to = {
      .corpus = target.name, .tenant = ctl.fleet.tenant, .replicas = target.replicas};
  CKV_ASSIGN_OR_RETURN(ExtendReport report,
                       publisher.Extend(to, source, kInstantMax, progress.observer));
  if (!report.kept.ok()) {
    ctl.Note("ckvctl: warning: " + NotKeptWarning(target.name, report.kept));
  }
  return Loaded{std::move(report.puts), report.version, report.chunk_begin, report.added_count};
}

}  // namespace ckv::ctl
