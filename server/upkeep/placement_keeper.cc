// Keeps this holder's parts of corpora next to the chunks. Its thread waits for news of the lease,
// of placements or of lost chunks, and then runs Round, in order:
//   1. Lists the corpora that the directory places here, with what was dropped since.
//   2. Under a new lease, reports tombstones (ReportDrops). Then reports parts that the directory
//      lacks (ReportParts).
//   3. Fetches and stores parts that are new (Ask), and reports chunks that are placed but not
//      here.
//   4. Stores what it has seen of the directory (NoteSeen); under a new lease, FinishReport.
// After an error it pauses, and repeats the round.

#include "server/upkeep/placement_keeper.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "server/directory/tables/dropped_corpora.h"

namespace ckv {

absl::Status ForEachPage(
    std::span<const ChunkId> ids,
    absl::FunctionRef<absl::Status(std::span<const ChunkId> page, bool first, bool last)> take) {
  bool first = true;
  do {
    const std::span<const ChunkId> page = ids.first(std::min(ids.size(), kIdsPerCallMax));
    ids = ids.subspan(page.size());
    CKV_RETURN_IF_ERROR(take(page, first, ids.empty()));
    first = false;
  } while (!ids.empty());
  return absl::OkStatus();
}

absl::StatusOr<PlacementSource::Placed> LocalPlacementSource::ListPlacedCorpora(
    const HolderId& holder, const SeenDirectory& seen, Instant /*deadline*/) {
  HolderReports::News news = reports_.NewsSince(seen);
  Placed placed = {.versions = {}, .seen = news.seen, .dropped = std::move(news.dropped)};
  for (const auto& corpus : reports_.ListPlacedCorpora(holder, std::nullopt, SIZE_MAX))
    placed.versions.emplace(CorpusParts::Key(corpus->tenant, corpus->name), corpus->version);
  return placed;
}

absl::StatusOr<CorpusPart> LocalPlacementSource::GetPart(const HolderId& holder,
                                                         const CorpusParts::Key& key,
                                                         Instant /*deadline*/) {
  return reports_.PartOf(holder, key.first, key.second, 0, SIZE_MAX);
}

absl::StatusOr<bool> LocalPlacementSource::ReportPart(uint64_t lease_id, const CorpusPart& part,
                                                      Instant /*deadline*/) {
  return reports_.ReportPart(lease_id, part);
}

absl::StatusOr<bool> LocalPlacementSource::ReportDropped(uint64_t lease_id,
                                                         const SeenDirectory& seen,
                                                         std::span<const DroppedCorpus> dropped,
                                                         Instant deadline) {
  CKV_ASSIGN_OR_RETURN(const bool wanted, reports_.NoteSeen(lease_id, seen));
  CKV_RETURN_IF_ERROR(reports_.ReportDropped(lease_id, seen, dropped, deadline));
  return wanted;
}

absl::Status LocalPlacementSource::ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                                                 Instant /*deadline*/) {
  return ForEachPage(ids, [&](std::span<const ChunkId> page, bool first, bool last) {
    return reports_.ReportLacking(lease_id, page, first, last);
  });
}

absl::StatusOr<std::vector<uint32_t>> LocalPlacementSource::CountReferences(
    const HolderId& holder, std::span<const ChunkId> ids, Instant /*deadline*/) {
  return state_.CountReferences(ids, holder.name);
}

absl::Status LocalPlacementSource::FinishReport(uint64_t lease_id, Instant /*deadline*/) {
  return reports_.FinishReport(lease_id);
}

PlacementKeeper::PlacementKeeper(const PlacementKeeperOptions& options, PlacementSource* source,
                                 CorpusParts* parts, PlacedChunks chunks)
    : options_(options),
      source_(*source),
      parts_(*parts),
      chunks_(std::move(chunks)),
      left_({.name = options.self.name, .drop_after = options.drop_after}) {
  stats_.part_count = parts_.List().size();
  thread_ = Thread([this] { Run(); });
}

PlacementKeeper::~PlacementKeeper() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    // Callers of KeepNow leave first.
    const auto left = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return waiting_ == 0; };
    mu_.Await(absl::Condition(&left));
  }
  thread_.join();
}

void PlacementKeeper::Note(const LeaseGrant& lease, uint64_t placed_change_count) {
  absl::MutexLock lock(&mu_);
  news_ = {lease, placed_change_count};
  is_look_due_ |= ChangeCount() != looked_at_;
}

void PlacementKeeper::NoteLeased(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  leased_.push_back(id);
}

bool PlacementKeeper::HasOtherPlaces() const {
  return news_ && (news_->lease.lease_id != done_lease_ ||
                   news_->placed_change_count != done_count_ || wanted_ != done_wanted_);
}

absl::Status PlacementKeeper::KeepNow(Instant deadline) {
  absl::MutexLock lock(&mu_);
  const uint64_t mine = ++wanted_;
  const auto done = [this, mine]()
                        ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stop_ || done_wanted_ >= mine; };
  ++waiting_;
  options_.clock->Await(mu_, absl::Condition(&done), deadline);
  --waiting_;
  if (done_wanted_ >= mine) return absl::OkStatus();
  if (stop_) return absl::UnavailableError("the holder ends");
  return absl::DeadlineExceededError(absl::StrFormat(
      "the directory's corpora are not kept in time%s%s", stats_.last_error.ok() ? "" : ": ",
      std::string(stats_.last_error.message())));
}

bool PlacementKeeper::HasNews() const {
  return stop_ || is_look_due_ || HasOtherPlaces() || (news_ && !leased_.empty());
}

void PlacementKeeper::Run() {
  Instant next = options_.clock->Now();
  for (;;) {
    News news;
    bool first = false, is_moved = false;
    uint64_t wanted = 0;
    std::vector<ChunkId> leased;
    {
      absl::MutexLock lock(&mu_);
      // Pauses after a failure, whatever the news.
      if (options_.clock->Await(mu_, absl::Condition(&stop_), next)) return;
      options_.clock->Await(mu_, absl::Condition(this, &PlacementKeeper::HasNews), left_.due());
      if (stop_) return;
      news = *news_;  // there is some: nothing was left before the first round
      first = news.lease.lease_id != done_lease_;
      wanted = wanted_;
      is_moved = HasOtherPlaces();
      is_look_due_ = false;
      looked_at_ = ChangeCount();  // before the look
      leased.swap(leased_);
    }
    if (!leased.empty()) {
      left_.AddLeased(std::move(leased), news.lease.folder_id, options_.clock->Now());
      absl::MutexLock lock(&mu_);
      stats_.left_count = left_.size();
    }
    if (options_.clock->Now() >= left_.due()) {
      const absl::Status dropped = DropLeft(news.lease);
      if (!dropped.ok()) next = options_.clock->Now() + options_.retry_pause;
    }
    if (!is_moved && IsLackingAsReported()) continue;
    const absl::Status status = Round(news.lease, first);
    next = options_.clock->Now();  // the pause begins before the error can be seen
    NoteRound(status);
    absl::MutexLock lock(&mu_);
    if (!status.ok()) {
      next = next + options_.retry_pause;
      done_count_ = UINT64_MAX;  // again, whatever the news
      continue;
    }
    done_lease_ = news.lease.lease_id;
    done_count_ = news.placed_change_count;
    done_wanted_ = wanted;
  }
}

void PlacementKeeper::NoteRound(const absl::Status& status) {
  const size_t part_count = parts_.List().size();
  absl::MutexLock lock(&mu_);
  // Logged once.
  if (!status.ok() && stats_.last_error.ok()) {
    Log().info("{}: the directory's entries on its corpora are not kept yet: {}",
               options_.self.name, std::string(status.message()));
  }
  stats_.last_error = status;
  stats_.part_count = part_count;
  stats_.left_count = left_.size();
  if (status.ok()) ++stats_.round_count;
}

// A disk may return under another name, perhaps that of a holder that is offline. It has seen
// nothing of what is listed for that name, so it must not report that as gone.
SeenDirectory PlacementKeeper::Seen() const {
  return parts_.seen_by() == options_.self.name ? parts_.seen() : SeenDirectory();
}

absl::Status PlacementKeeper::Round(const LeaseGrant& lease, bool first) {
  const Instant deadline = options_.clock->Now() + options_.round_timeout;
  CKV_ASSIGN_OR_RETURN(const PlacementSource::Placed placed,
                       source_.ListPlacedCorpora(options_.self, Seen(), deadline));
  const Listed& listed = placed.versions;
  absl::Status kept;
  if (lease.folder_id != 0) {
    // Reports tombstones first. Otherwise parts of dropped corpora would be taken for news.
    if (first) CKV_RETURN_IF_ERROR(ReportDrops(lease, listed, deadline));
    kept = ReportParts(lease, listed, deadline);
  }
  const auto left = parts_.List();
  for (const auto& [key, version] : listed) {
    const auto known = left.find(key);
    const CorpusParts::Summary due = {version, lease.folder_id};
    if (known != left.end() && (known->second == due || known->second.version > version)) continue;
    kept.Update(Ask(key, deadline));
  }
  // Lacking chunks are reported even if the disk accepts no part.
  IndexParts(listed);
  CKV_RETURN_IF_ERROR(ReportLackingChunks(lease, deadline));
  CKV_RETURN_IF_ERROR(kept);
  CKV_RETURN_IF_ERROR(NoteSeen(placed));
  return first ? source_.FinishReport(lease.lease_id, deadline) : absl::OkStatus();
}

absl::Status PlacementKeeper::ReportDrops(const LeaseGrant& lease, const Listed& listed,
                                          Instant deadline) {
  const SeenDirectory seen = Seen();
  const auto wanted = source_.ReportDropped(lease.lease_id, seen, {}, deadline);
  CKV_RETURN_IF_ERROR(wanted.status());
  if (!*wanted) return absl::OkStatus();
  std::vector<DroppedCorpus> drops = parts_.dropped();
  const auto kept = parts_.List();
  for (const auto& [key, version] : listed) {
    // It has seen a later state of this folder, in which that version was not placed here.
    const bool is_gone =
        seen.folder_id == lease.folder_id && version <= seen.number && !kept.contains(key);
    if (is_gone) drops.push_back({key.first, key.second, seen.folder_id, version, seen.number});
  }
  for (size_t begin = 0; begin < drops.size(); begin += kDroppedCountMax) {
    const size_t count = std::min(kDroppedCountMax, drops.size() - begin);
    CKV_RETURN_IF_ERROR(
        source_
            .ReportDropped(lease.lease_id, seen, std::span(drops).subspan(begin, count), deadline)
            .status());
  }
  return absl::OkStatus();
}

absl::Status PlacementKeeper::ReportParts(const LeaseGrant& lease, const Listed& listed,
                                          Instant deadline) {
  if (std::exchange(reported_lease_, lease.lease_id) != lease.lease_id) reported_.clear();
  absl::Status refused;
  const auto kept = parts_.List();
  for (const auto& [key, summary] : kept) {
    const auto there = listed.find(key);
    // A directory that was restored from an old copy may list a previous version.
    if (there != listed.end() && there->second >= summary.version) continue;
    const auto reported = reported_.find(key);
    if (reported != reported_.end() && reported->second == summary.version) continue;
    // If the part's corpus was dropped or moved, the part is superseded, and Report removes it.
    const absl::Status status = Report(lease, key, deadline);
    if (status.ok()) reported_[key] = summary.version;
    if (absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)) {
      // This part is refused. The others are reported all the same.
      refused.Update(status);
      continue;
    }
    CKV_RETURN_IF_ERROR(status);
  }
  CKV_RETURN_IF_ERROR(refused);
  reported_.clear();
  return absl::OkStatus();
}

absl::Status PlacementKeeper::NoteSeen(const PlacementSource::Placed& placed) {
  if (placed.seen.folder_id == 0) return absl::OkStatus();
  DroppedCorpora drops(kDroppedCountMax);
  for (const DroppedCorpus& dropped : parts_.dropped()) drops.Note(dropped);
  for (const DroppedCorpus& dropped : placed.dropped) drops.Note(dropped);
  std::vector<DroppedCorpus> all = drops.All();
  if (placed.seen == Seen() && all == parts_.dropped()) return absl::OkStatus();
  return parts_.WriteSeen(placed.seen, options_.self.name, std::move(all));
}

absl::Status PlacementKeeper::Report(const LeaseGrant& lease, const CorpusParts::Key& key,
                                     Instant deadline) {
  absl::StatusOr<CorpusPart> part = parts_.Read(key);
  if (absl::IsDataLoss(part.status()) || absl::IsNotFound(part.status())) {
    Log().warn("{}: {}", options_.self.name, std::string(part.status().message()));
    return parts_.GiveUp(key);
  }
  CKV_RETURN_IF_ERROR(part.status());
  CorpusPart there = *part;
  there.corpus.chunks.clear();
  there.ordinals.clear();
  bool is_ours = false;
  for (size_t i = 0; i < part->ordinals.size(); ++i) {
    const ChunkPlacement& chunk = part->corpus.chunks[i];
    const auto& holders = chunk.holders();
    const bool names_us = std::find(holders.begin(), holders.end(), options_.self) != holders.end();
    is_ours |= names_us;
    if (!names_us || (chunk.token_count > 0 && !chunks_.has(chunk.id))) continue;
    there.corpus.chunks.push_back(chunk);
    there.ordinals.push_back(part->ordinals[i]);
  }
  // The part was received under another name of this holder. It stays here, because it helps only
  // if the holder has that name again.
  if (!is_ours) return absl::OkStatus();
  // All its chunks are gone from here, so no directory would send a requester here for them.
  if (there.ordinals.empty()) return parts_.Remove(key);
  CKV_ASSIGN_OR_RETURN(const bool superseded, source_.ReportPart(lease.lease_id, there, deadline));
  {
    absl::MutexLock lock(&mu_);
    ++stats_.reported_count;
  }
  if (!superseded) return absl::OkStatus();
  placed_.erase(key);
  NoteLeft(ReadStored(key), key);
  return parts_.Remove(key);
}

absl::Status PlacementKeeper::Ask(const CorpusParts::Key& key, Instant deadline) {
  const absl::StatusOr<CorpusPart> part = source_.GetPart(options_.self, key, deadline);
  // Dropped or moved since it was listed.
  if (absl::IsNotFound(part.status())) {
    placed_.erase(key);
    return parts_.Remove(key);
  }
  CKV_RETURN_IF_ERROR(part.status());
  StoredPart before = ReadStored(key);
  IndexPart(*part);
  if (before.folder_id == part->folder_id) NoteLeft(std::move(before), key);
  return part->ordinals.empty() ? parts_.Remove(key) : parts_.Write(*part);
}

PlacementKeeper::StoredPart PlacementKeeper::ReadStored(const CorpusParts::Key& key) {
  StoredPart stored;
  if (!chunks_.drop || options_.drop_after == Duration(0)) return stored;
  const absl::StatusOr<CorpusPart> part = parts_.Read(key);
  if (!part.ok()) return stored;
  stored.folder_id = part->folder_id;
  for (const ChunkPlacement& chunk : part->corpus.chunks) {
    if (std::find(chunk.holders().begin(), chunk.holders().end(), options_.self) !=
        chunk.holders().end())
      stored.ids.push_back(chunk.id);
  }
  return stored;
}

void PlacementKeeper::NoteLeft(StoredPart before, const CorpusParts::Key& key) {
  if (before.folder_id == 0 || before.ids.empty()) return;
  absl::flat_hash_set<ChunkId> now;
  if (const auto placed = placed_.find(key); placed != placed_.end())
    now.insert(placed->second.ids.begin(), placed->second.ids.end());
  std::erase_if(before.ids, [&](const ChunkId& id) { return now.contains(id); });
  left_.Add(std::move(before.ids), before.folder_id, options_.clock->Now());
}

absl::Status PlacementKeeper::DropLeft(const LeaseGrant& lease) {
  const Instant now = options_.clock->Now();
  const absl::StatusOr<uint64_t> dropped = left_.DropDue(
      lease.folder_id, now,
      [&](std::span<const ChunkId> ids) {
        return source_.CountReferences(options_.self, ids, now + options_.round_timeout);
      },
      chunks_.drop);
  absl::MutexLock lock(&mu_);
  if (dropped.ok()) stats_.dropped_count += *dropped;
  stats_.left_count = left_.size();
  return dropped.status();
}

void PlacementKeeper::IndexPart(const CorpusPart& part) {
  PlacedPart& placed = placed_[{part.corpus.tenant, part.corpus.name}];
  placed = {part.corpus.version, {}};
  for (const ChunkPlacement& chunk : part.corpus.chunks) {
    const auto& holders = chunk.holders();
    // No holder is queried for a chunk without tokens.
    if (chunk.token_count > 0 &&
        std::find(holders.begin(), holders.end(), options_.self) != holders.end())
      placed.ids.push_back(chunk.id);
  }
}

void PlacementKeeper::IndexParts(const Listed& listed) {
  std::erase_if(placed_, [&](const auto& entry) { return !listed.contains(entry.first); });
  for (const auto& [key, version] : listed) {
    const auto known = placed_.find(key);
    if (known != placed_.end() && known->second.version >= version) continue;
    // Stored by an earlier incarnation. A part that cannot be read is requested in another round.
    if (const absl::StatusOr<CorpusPart> part = parts_.Read(key); part.ok()) IndexPart(*part);
  }
}

std::vector<ChunkId> PlacementKeeper::Lacking() const {
  std::vector<ChunkId> lacking;
  for (const auto& [key, placed] : placed_) {
    for (const ChunkId& id : placed.ids) {
      if (!chunks_.has(id)) lacking.push_back(id);
    }
  }
  // A chunk that was moved within the table was absent for a moment.
  std::erase_if(lacking, [this](const ChunkId& id) { return chunks_.has(id); });
  std::sort(lacking.begin(), lacking.end());
  lacking.erase(std::unique(lacking.begin(), lacking.end()), lacking.end());
  return lacking;
}

bool PlacementKeeper::IsLackingAsReported() { return Lacking() == reported_lacking_; }

absl::Status PlacementKeeper::ReportLackingChunks(const LeaseGrant& lease, Instant deadline) {
  std::vector<ChunkId> lacking = Lacking();
  size_t placed_count = 0;
  for (const auto& [key, placed] : placed_) placed_count += placed.ids.size();
  {
    absl::MutexLock lock(&mu_);
    stats_.placed_count = placed_count;
    stats_.lacking_count = lacking.size();
  }
  LogLacking(lacking, placed_count);
  const bool is_new_lease = std::exchange(lacking_lease_, lease.lease_id) != lease.lease_id;
  const bool is_news =
      is_unreported_ || lacking != reported_lacking_ || (is_new_lease && !lacking.empty());
  reported_lacking_ = std::move(lacking);
  if (!is_news) return absl::OkStatus();
  absl::Status reported = source_.ReportLacking(lease.lease_id, reported_lacking_, deadline);
  is_unreported_ = !reported.ok();  // if so, reported again, even if nothing is lacking then
  return reported;
}

void PlacementKeeper::LogLacking(const std::vector<ChunkId>& lacking, size_t placed_count) {
  if (lacking == reported_lacking_) return;
  if (lacking.empty()) {
    Log().info("{}: all {} chunks that corpora place here are here again", options_.self.name,
               placed_count);
    return;
  }
  const bool is_less = std::includes(reported_lacking_.begin(), reported_lacking_.end(),
                                     lacking.begin(), lacking.end());
  if (is_less) return;  // chunks are returning
  Log().warn(
      "{}: {} of the {} chunks that corpora place here are not here, {} the first: callers are "
      "sent to other holders of them; if there are none, load their corpora with --replace",
      options_.self.name, lacking.size(), placed_count, lacking.front().ToHex());
}

PlacementKeeper::Stats PlacementKeeper::stats() const {
  absl::MutexLock lock(&mu_);
  return stats_;
}

}  // namespace ckv
