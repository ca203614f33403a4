#include "server/upkeep/placement_keeper.h"

#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

absl::StatusOr<std::map<CorpusParts::Key, uint64_t>> LocalPlacementSource::ListPlacedCorpora(
    const HolderId& holder, Instant /*deadline*/) {
  std::map<CorpusParts::Key, uint64_t> placed;
  for (const auto& corpus : state_.ListPlacedCorpora(holder, std::nullopt, SIZE_MAX))
    placed.emplace(CorpusParts::Key(corpus->tenant, corpus->name), corpus->version);
  return placed;
}

absl::StatusOr<CorpusPart> LocalPlacementSource::GetPart(const HolderId& holder,
                                                         const CorpusParts::Key& key,
                                                         Instant /*deadline*/) {
  return state_.PartOf(holder, key.first, key.second, 0, SIZE_MAX);
}

absl::StatusOr<bool> LocalPlacementSource::ReportPart(uint64_t lease_id, const CorpusPart& part,
                                                      Instant /*deadline*/) {
  return state_.ReportPart(lease_id, part);
}

absl::Status LocalPlacementSource::FinishReport(uint64_t lease_id, Instant /*deadline*/) {
  return state_.FinishReport(lease_id);
}

PlacementKeeper::PlacementKeeper(const PlacementKeeperOptions& options, PlacementSource* source,
                                 CorpusParts* parts, std::function<bool(const ChunkId&)> has_chunk)
    : options_(options), source_(*source), parts_(*parts), has_chunk_(std::move(has_chunk)) {
  stats_.part_count = parts_.List().size();
  thread_ = std::thread([this] { Run(); });
}

PlacementKeeper::~PlacementKeeper() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void PlacementKeeper::Note(const LeaseGrant& lease, uint64_t placed_change_count) {
  absl::MutexLock lock(&mu_);
  news_ = {lease, placed_change_count};
}

bool PlacementKeeper::HasNews() const {
  return stop_ || (news_ && (news_->lease.lease_id != done_lease_ ||
                             news_->placed_change_count != done_count_));
}

void PlacementKeeper::Run() {
  Instant next = options_.clock->Now();
  for (;;) {
    News news;
    bool first = false;
    {
      absl::MutexLock lock(&mu_);
      // After a failure it pauses, whatever the news.
      if (options_.clock->Await(mu_, absl::Condition(&stop_), next)) return;
      options_.clock->Await(mu_, absl::Condition(this, &PlacementKeeper::HasNews), kInstantMax);
      if (stop_) return;
      news = *news_;
      first = news.lease.lease_id != done_lease_;
    }
    const absl::Status status = Round(news.lease, first);
    NoteRound(status);
    next = options_.clock->Now();
    if (!status.ok()) {
      next = next + options_.retry_pause;
      continue;
    }
    absl::MutexLock lock(&mu_);
    done_lease_ = news.lease.lease_id;
    done_count_ = news.placed_change_count;
  }
}

void PlacementKeeper::NoteRound(const absl::Status& status) {
  const size_t part_count = parts_.List().size();
  absl::MutexLock lock(&mu_);
  // A directory of an earlier build, or one that is away: said once.
  if (!status.ok() && stats_.last_error.ok()) {
    Log().info("{}: what the directory says of its corpora is not kept yet: {}", options_.self.name,
               std::string(status.message()));
  }
  stats_.last_error = status;
  stats_.part_count = part_count;
  if (status.ok()) ++stats_.round_count;
}

absl::Status PlacementKeeper::Round(const LeaseGrant& lease, bool first) {
  const Instant deadline = options_.clock->Now() + options_.round_timeout;
  CKV_ASSIGN_OR_RETURN(const Listed listed, source_.ListPlacedCorpora(options_.self, deadline));
  const auto kept = parts_.List();
  for (const auto& [key, summary] : kept) {
    const auto there = listed.find(key);
    // A directory that was restored from an old copy may list a version of before.
    if (there != listed.end() && there->second >= summary.version) continue;
    // A part of a corpus that was dropped or moved is superseded, and forgotten then.
    if (lease.folder_id != 0) CKV_RETURN_IF_ERROR(Report(lease, key, deadline));
  }
  const auto left = parts_.List();
  for (const auto& [key, version] : listed) {
    const auto known = left.find(key);
    const CorpusParts::Summary due = {version, lease.folder_id};
    if (known != left.end() && (known->second == due || known->second.version > version)) continue;
    CKV_RETURN_IF_ERROR(Ask(key, deadline));
  }
  return first ? source_.FinishReport(lease.lease_id, deadline) : absl::OkStatus();
}

absl::Status PlacementKeeper::Report(const LeaseGrant& lease, const CorpusParts::Key& key,
                                     Instant deadline) {
  absl::StatusOr<CorpusPart> part = parts_.Read(key);
  if (absl::IsDataLoss(part.status()) || absl::IsNotFound(part.status())) {
    Log().warn("{}: {}", options_.self.name, std::string(part.status().message()));
    return parts_.Remove(key);
  }
  CKV_RETURN_IF_ERROR(part.status());
  CorpusPart there = *part;
  there.corpus.chunks.clear();
  there.ordinals.clear();
  for (size_t i = 0; i < part->ordinals.size(); ++i) {
    const ChunkPlacement& chunk = part->corpus.chunks[i];
    if (chunk.token_count > 0 && !has_chunk_(chunk.id)) continue;
    there.corpus.chunks.push_back(chunk);
    there.ordinals.push_back(part->ordinals[i]);
  }
  // All of it was dropped here: no directory would send anybody for it.
  if (there.ordinals.empty()) return parts_.Remove(key);
  CKV_ASSIGN_OR_RETURN(const bool superseded, source_.ReportPart(lease.lease_id, there, deadline));
  {
    absl::MutexLock lock(&mu_);
    ++stats_.reported_count;
  }
  return superseded ? parts_.Remove(key) : absl::OkStatus();
}

absl::Status PlacementKeeper::Ask(const CorpusParts::Key& key, Instant deadline) {
  const absl::StatusOr<CorpusPart> part = source_.GetPart(options_.self, key, deadline);
  // Dropped or moved since it was listed.
  if (absl::IsNotFound(part.status())) return parts_.Remove(key);
  CKV_RETURN_IF_ERROR(part.status());
  return part->ordinals.empty() ? parts_.Remove(key) : parts_.Write(*part);
}

PlacementKeeper::Stats PlacementKeeper::stats() const {
  absl::MutexLock lock(&mu_);
  return stats_;
}

}  // namespace ckv
