// Makes copies on request, and withdraws them. Replicate, on the caller's thread, one at a time
// (Turn): for each chunk CopyOne queries a holder for its facts, makes room (MakeRoom drops the
// copy unused for the longest), fetches the rows, and commits. The keeper's thread then announces
// copies to the directory (AnnounceDue) and repeats that under a new lease; Audit withdraws copies
// that the store lost. A copy is dropped only after the directory has withdrawn it, so no requester
// is sent here for it. Adopt gives a copy to a put of the same chunk.

#include "server/upkeep/replica_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

absl::StatusOr<std::vector<bool>> LocalReplicaRegistry::Announce(uint64_t lease_id,
                                                                 std::string_view tenant,
                                                                 std::span<const ChunkId> ids,
                                                                 Instant /*deadline*/) {
  return state_->AnnounceReplicas(lease_id, tenant, ids);
}
absl::Status LocalReplicaRegistry::Withdraw(uint64_t lease_id,
                                            std::optional<std::string_view> tenant,
                                            std::span<const ChunkId> ids, Instant /*deadline*/) {
  return state_->WithdrawReplicas(lease_id, tenant, ids);
}

class ReplicaKeeper::Turn {
 public:
  Turn(Clock* clock, absl::Mutex* mu, bool* taken, Instant deadline) : mu_(mu), taken_(taken) {
    absl::MutexLock lock(mu_);
    held_ = clock->Await(*mu_, absl::Condition(&IsFree, taken_), deadline);
    if (held_) *taken_ = true;
  }
  ~Turn() {
    if (!held_) return;
    absl::MutexLock lock(mu_);
    *taken_ = false;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  absl::Status status() const {
    if (held_) return absl::OkStatus();
    return absl::DeadlineExceededError("replicas: other calls took until the deadline");
  }

 private:
  static bool IsFree(bool* taken) { return !*taken; }
  absl::Mutex* const mu_;
  bool* const taken_;
  bool held_ = false;
};

ReplicaKeeper::ReplicaKeeper(const ReplicaKeeperOptions& options, DirectoryControl* directory,
                             ChunkInfoSource* source, ReplicaRegistry* registry,
                             Requester* requester, ChunkStore* store, LeaseSource lease)
    : options_(options),
      directory_(directory),
      source_(source),
      registry_(registry),
      requester_(requester),
      store_(store),
      lease_(std::move(lease)) {
  thread_ = Thread([this] { Run(); });
}

ReplicaKeeper::~ReplicaKeeper() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

absl::Status ReplicaKeeper::Check(const ReplicaCall& call) const {
  if (call.corpus == nullptr || call.chunks.empty()) {
    return absl::InvalidArgumentError("replicas: no corpus, or none of its chunks");
  }
  return ChunksOrAll(*call.corpus, call.chunks).status();
}

absl::StatusOr<ReplicaReport> ReplicaKeeper::Replicate(const ReplicaCall& call) {
  CKV_RETURN_IF_ERROR(Check(call));
  if (options_.replica_bytes_max == 0) {
    return absl::FailedPreconditionError(
        "replicas: this holder keeps none: start it with --replicas-percent above 0");
  }
  if (!lease_()) {
    return absl::UnavailableError("replicas: no lease yet: the directory has not answered");
  }
  uint64_t bytes = 0;
  for (const uint32_t i : call.chunks) {
    bytes += ChunkLayout(call.corpus->geometry, call.corpus->chunks[i].token_count).total_bytes();
  }
  if (bytes > options_.replica_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "replicas: the chunks take %d bytes, the limit is %d (replicas.percent): ask for fewer",
        bytes, options_.replica_bytes_max));
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, directory_->ListMembers(call.deadline));
  Job job{.call = call, .ask = 0, .members = {}, .report = {}};
  for (const Member& member : members) {
    if (member.role == MemberRole::kHolder) job.members.emplace(member.id, member);
  }
  {
    absl::MutexLock lock(&mu_);
    job.ask = ++ask_count_;
  }
  const absl::Status copied = CopyAll(job);
  // Copies made before an error are whole and usable.
  const absl::Status announced = AnnounceDue(call.deadline, job.report.refused_count);
  CKV_RETURN_IF_ERROR(copied);
  CKV_RETURN_IF_ERROR(announced);
  return job.report;
}

absl::Status ReplicaKeeper::CopyAll(Job& job) {
  const Corpus& corpus = *job.call.corpus;
  for (const uint32_t i : job.call.chunks) {
    Turn turn(options_.clock, &mu_, &copying_, job.call.deadline);
    CKV_RETURN_IF_ERROR(turn.status());
    const absl::Status status = CopyOne(job, corpus.chunks[i], i);
    if (!status.ok()) return Annotate(status, absl::StrFormat("replicas: chunk %d", i));
  }
  return absl::OkStatus();
}

absl::Status ReplicaKeeper::CopyOne(Job& job, const ChunkPlacement& chunk, uint32_t ordinal) {
  const Corpus& corpus = *job.call.corpus;
  const uint64_t bytes = ChunkLayout(corpus.geometry, chunk.token_count).total_bytes();
  if (store_->table().Find(chunk.id, corpus.geometry, corpus.tenant).ok()) {
    absl::MutexLock lock(&mu_);
    NoteLocked(job, chunk.id, /*own=*/false, bytes);
    ++job.report.present_count;
    return absl::OkStatus();
  }
  // The directory would refuse it: not worth the transfer.
  if (chunk.holders().size() + chunk.leased().size() >= kReplicaCountMax &&
      std::find(chunk.leased().begin(), chunk.leased().end(), options_.self) ==
          chunk.leased().end()) {
    ++job.report.refused_count;
    return absl::OkStatus();
  }
  CKV_ASSIGN_OR_RETURN(const ChunkInfo info, QueryInfo(job, chunk));
  auto writer = BeginCopy(job, info, bytes);
  absl::Status status = writer.status();
  if (status.ok()) status = FetchInto(job, ordinal, *writer);
  std::optional<Chunk> whole;
  if (status.ok()) {
    CKV_ASSIGN_OR_RETURN(whole, std::move(*writer).Finish());
  }
  // The lock is held until the copy is noted, so that Adopt cannot run in between: see DropLocked.
  absl::MutexLock lock(&mu_);
  if (whole) status = store_->InsertCopy(*std::move(whole), corpus.tenant);
  // Put meanwhile, or present for another tenant, which is no longer the only reader.
  const bool present = absl::IsAlreadyExists(status);
  if (!present) CKV_RETURN_IF_ERROR(status);
  NoteLocked(job, chunk.id, /*own=*/!present, bytes);
  if (present) {
    ++job.report.present_count;
    return absl::OkStatus();
  }
  const uint64_t row_bytes = chunk.token_count * corpus.geometry.token_bytes();
  ++job.report.fetched_count;
  job.report.fetched_bytes += row_bytes;
  ++stats_.fetched_count;
  stats_.fetched_bytes += row_bytes;
  return absl::OkStatus();
}

// Queries the holders in turn and returns the first answer that fits the id. The answer is checked
// here, so that a holder with other rows, or none, does not hide the next.
absl::StatusOr<ChunkInfo> ReplicaKeeper::QueryInfo(const Job& job, const ChunkPlacement& chunk) {
  const Corpus& corpus = *job.call.corpus;
  absl::Status last =
      absl::UnavailableError("none of its holders is registered with the directory");
  std::vector<HolderId> holders = chunk.holders();
  holders.insert(holders.end(), chunk.leased().begin(), chunk.leased().end());
  for (const HolderId& holder : holders) {
    const auto member = job.members.find(holder);
    if (member == job.members.end() || holder == options_.self) continue;
    auto info = source_->GetChunkInfo(member->second, chunk.id, corpus.geometry, corpus.tenant,
                                      job.call.deadline);
    last = info.status();
    if (last.ok()) {
      info->id = chunk.id;
      last = ValidateChunkInfo(*info, corpus.geometry);
      // Room is made for the directory's token count, so the two must agree.
      if (last.ok() && info->token_count() != chunk.token_count) {
        last = absl::InvalidArgumentError(absl::StrFormat("%d tokens, the directory has %d",
                                                          info->token_count(), chunk.token_count));
      }
      if (last.ok()) return info;
      last = absl::DataLossError(absl::StrFormat("holder %s describes another chunk: %s",
                                                 holder.name, std::string(last.message())));
    }
    if (options_.clock->Now() >= job.call.deadline) break;
  }
  return last;
}

absl::StatusOr<ChunkWriter> ReplicaKeeper::BeginCopy(Job& job, const ChunkInfo& info,
                                                     uint64_t bytes) {
  const Corpus& corpus = *job.call.corpus;
  bool full = false;
  {
    absl::MutexLock lock(&mu_);
    full = stats_.bytes + bytes > options_.replica_bytes_max;
  }
  if (full) CKV_RETURN_IF_ERROR(MakeRoom(job, bytes));
  auto writer = store_->BeginCopy(info, corpus.geometry, corpus.tenant);
  if (!absl::IsResourceExhausted(writer.status())) return writer;
  // The store is full of chunks that others put, so earlier copies are dropped before the new one
  // is refused. One try, because the free memory may be in gaps that are too small, however many
  // copies are dropped.
  if (!MakeRoom(job, bytes).ok()) return writer.status();
  return store_->BeginCopy(info, corpus.geometry, corpus.tenant);
}

absl::Status ReplicaKeeper::FetchInto(const Job& job, uint32_t ordinal, ChunkWriter& writer) {
  const Geometry& geometry = job.call.corpus->geometry;
  FetchCall call;
  call.corpus = job.call.corpus;
  call.chunk_begin = ordinal;
  call.chunk_end = ordinal + 1;
  call.tensor_end = geometry.tensor_count();
  call.deadline = job.call.deadline;
  return requester_->Fetch(call, [&](const FetchedRows& rows) {
    const uint64_t row_bytes = geometry.tensor_row_bytes(rows.tensor);
    return writer.Write(rows.tensor, rows.token_begin * row_bytes, rows.rows);
  });
}

void ReplicaKeeper::NoteLocked(Job& job, const ChunkId& id, bool own, uint64_t bytes) {
  const std::string& tenant = job.call.corpus->tenant;
  const auto [place, added] = copies_.try_emplace(id);
  Copy& copy = place->second;
  copy.last_requested = job.ask;
  // It was dropped meanwhile and is copied again, for this tenant alone.
  if (!added && own) copy.lease_of_tenant.clear();
  if (copy.lease_of_tenant.size() < ChunkLedger::kReaderCountMax ||
      copy.lease_of_tenant.contains(tenant)) {
    // Announced again even if it was before: the directory forgets a chunk that no corpus places.
    // If the corpus is published again, its readers request the copy again.
    copy.lease_of_tenant[tenant] = 0;
  } else {
    ++job.report.refused_count;
  }
  // A copy noted before keeps its owner, unless it was made again.
  if (!added && !own) return;
  if (!added && copy.own) {
    stats_.bytes -= copy.bytes;
    --stats_.chunk_count;
  }
  copy.own = own;
  copy.bytes = bytes;
  if (!own) return;
  stats_.bytes += bytes;
  ++stats_.chunk_count;
}

absl::Status ReplicaKeeper::MakeRoom(Job& job, uint64_t bytes) {
  std::vector<std::pair<uint64_t, ChunkId>> candidates;  // the least recently requested first
  uint64_t used = 0;
  {
    absl::MutexLock lock(&mu_);
    used = stats_.bytes;
    for (const auto& [id, copy] : copies_) {
      if (copy.own && copy.last_requested < job.ask)
        candidates.emplace_back(copy.last_requested, id);
    }
    std::sort(candidates.begin(), candidates.end());
    size_t count = 0;
    do {
      if (count < candidates.size()) used -= copies_.find(candidates[count].second)->second.bytes;
      ++count;
    } while (count < candidates.size() && used + bytes > options_.replica_bytes_max);
    candidates.resize(std::min(count, candidates.size()));
  }
  if (candidates.empty() || used + bytes > options_.replica_bytes_max) {
    return absl::ResourceExhaustedError(
        "no room: the chunks here were requested by later calls, or put by others");
  }
  std::vector<ChunkId> victims;
  for (const auto& [requested, id] : candidates) victims.push_back(id);
  CKV_RETURN_IF_ERROR(Withdraw(std::nullopt, victims, job.call.deadline));
  job.report.evicted_count += static_cast<uint32_t>(victims.size());
  absl::MutexLock lock(&mu_);
  stats_.evicted_count += victims.size();
  return absl::OkStatus();
}

absl::Status ReplicaKeeper::Withdraw(std::optional<std::string_view> tenant,
                                     std::span<const ChunkId> ids, Instant deadline) {
  while (!ids.empty()) {
    const auto some = ids.first(std::min(ids.size(), DirectoryState::kReplicaIdCountMax));
    ids = ids.subspan(some.size());
    // Held until they are dropped, so that nothing announces them in between.
    Turn turn(options_.clock, &mu_, &calling_, deadline);
    CKV_RETURN_IF_ERROR(turn.status());
    if (const auto lease = lease_(); lease.has_value()) {
      absl::Status withdrawn = registry_->Withdraw(lease->lease_id, tenant, some, deadline);
      // A lost lease has no announcements.
      if (!withdrawn.ok() && !absl::IsNotFound(withdrawn)) return withdrawn;
    }
    absl::MutexLock lock(&mu_);
    for (const ChunkId& id : some) DropLocked(tenant, id);
  }
  return absl::OkStatus();
}

// Takes the store's lock under this one, so that Adopt runs before or after, not in between. The
// store never calls the keeper.
void ReplicaKeeper::DropLocked(std::optional<std::string_view> tenant, const ChunkId& id) {
  const auto found = copies_.find(id);
  if (found == copies_.end()) return;
  if (tenant) {
    found->second.lease_of_tenant.erase(std::string(*tenant));
    if (!found->second.lease_of_tenant.empty()) return;
  }
  if (found->second.own) {
    stats_.bytes -= found->second.bytes;
    --stats_.chunk_count;
    // NotFound: others dropped it. If it is kept or has a file, it belongs to others from now on.
    store_->DropCopy(id).IgnoreError();
  }
  copies_.erase(found);
}

absl::StatusOr<uint32_t> ReplicaKeeper::Release(const ReplicaCall& call) {
  CKV_RETURN_IF_ERROR(Check(call));
  Turn turn(options_.clock, &mu_, &copying_, call.deadline);
  CKV_RETURN_IF_ERROR(turn.status());
  std::vector<ChunkId> ids;
  {
    absl::MutexLock lock(&mu_);
    for (const uint32_t i : call.chunks) {
      const ChunkId& id = call.corpus->chunks[i].id;
      const auto copy = copies_.find(id);
      if (copy != copies_.end() && copy->second.lease_of_tenant.contains(call.corpus->tenant))
        ids.push_back(id);
    }
  }
  CKV_RETURN_IF_ERROR(Withdraw(call.corpus->tenant, ids, call.deadline));
  return static_cast<uint32_t>(ids.size());
}

void ReplicaKeeper::Adopt(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  const auto found = copies_.find(id);
  if (found == copies_.end() || !found->second.own) return;
  found->second.own = false;
  stats_.bytes -= found->second.bytes;
  --stats_.chunk_count;
}

ReplicaKeeper::Due ReplicaKeeper::DueUnder(uint64_t lease_id) {
  absl::btree_map<std::string_view, std::vector<ChunkId>> due;
  absl::MutexLock lock(&mu_);
  for (const auto& [id, copy] : copies_) {
    if (!store_->table().Contains(id)) continue;
    for (const auto& [tenant, announced] : copy.lease_of_tenant) {
      if (announced != lease_id) due[tenant].push_back(id);
    }
  }
  if (due.empty()) return {};
  // Takes the first tenant's chunks, in order, so that a run can be replayed (I8).
  auto& [tenant, ids] = *due.begin();
  std::sort(ids.begin(), ids.end());
  ids.resize(std::min(ids.size(), DirectoryState::kReplicaIdCountMax));
  return {std::string(tenant), std::move(ids)};
}

absl::Status ReplicaKeeper::AnnounceDue(Instant deadline, uint32_t& refused) {
  for (;;) {
    Turn turn(options_.clock, &mu_, &calling_, deadline);
    CKV_RETURN_IF_ERROR(turn.status());
    const auto lease = lease_();
    if (!lease.has_value()) return absl::UnavailableError("replicas: the lease is lost");
    const auto [tenant, ids] = DueUnder(lease->lease_id);
    if (ids.empty()) return absl::OkStatus();
    const auto accepted = registry_->Announce(lease->lease_id, tenant, ids, deadline);
    absl::MutexLock lock(&mu_);
    if (!accepted.ok()) {
      ++stats_.announce_failure_count;
      return Annotate(accepted.status(), "replicas: announcing");
    }
    if (accepted->size() != ids.size()) return absl::InternalError("replicas: a short answer");
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto copy = copies_.find(ids[i]);
      if (copy == copies_.end()) continue;
      if ((*accepted)[i]) {
        copy->second.lease_of_tenant[tenant] = lease->lease_id;
      } else {
        // The directory sends no requester here for it, so it would only take room.
        DropLocked(tenant, ids[i]);
        ++refused;
      }
    }
  }
}

absl::Status ReplicaKeeper::Audit(Instant deadline) {
  // Not while a missing copy is being made again. The next audit is soon.
  Turn turn(options_.clock, &mu_, &copying_, options_.clock->Now());
  if (!turn.status().ok()) return absl::OkStatus();
  std::vector<ChunkId> gone;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, copy] : copies_) {
      if (!store_->table().Contains(id)) gone.push_back(id);
    }
  }
  return Withdraw(std::nullopt, gone, deadline);
}

void ReplicaKeeper::Run() {
  bool failing = false;
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      const Instant next = options_.clock->Now() + options_.audit_period;
      if (options_.clock->Await(mu_, absl::Condition(&stop_), next)) return;
      if (copies_.empty()) continue;
    }
    if (!lease_().has_value()) continue;
    const Instant deadline = options_.clock->Now() + options_.call_timeout;
    uint32_t refused = 0;
    absl::Status status = Audit(deadline);
    if (status.ok()) status = AnnounceDue(deadline, refused);
    if (refused > 0) Log().info("{} replicas are wanted no more and were dropped", refused);
    if (!status.ok() && !failing) {
      Log().warn("replicas are not reported to the directory: {}", std::string(status.message()));
    }
    failing = !status.ok();
  }
}

ReplicaStats ReplicaKeeper::stats() const {
  absl::MutexLock lock(&mu_);
  ReplicaStats stats = stats_;
  stats.bytes_max = options_.replica_bytes_max;
  return stats;
}

}  // namespace ckv
