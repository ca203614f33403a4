#include "server/upkeep/repairer.h"

#include <algorithm>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

Repairer::Repairer(const RepairerOptions& options, ChunkStore* store, RepairSource* source,
                   std::function<bool()> may_query, ScrubCounters* counters)
    : options_(options),
      store_(*store),
      source_(*source),
      may_query_(std::move(may_query)),
      counters_(*counters),
      thread_([this] { Run(); }) {}

Repairer::~Repairer() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  source_.Cancel();
  thread_.join();
}

void Repairer::Run() {
  const auto stopped = [this](Instant until) {
    absl::MutexLock lock(&mu_);
    return options_.clock->Await(mu_, absl::Condition(&stop_), until);
  };
  while (!stopped(options_.clock->Now() + options_.look_period)) {
    TakeLost();
    if (pending_.empty() || !may_query_()) continue;
    // Tries each at most once per round.
    for (size_t left = pending_.size(); left > 0 && !stopped(options_.clock->Now()); --left) {
      Pending pending = std::move(pending_.front());
      pending_.pop_front();
      if (!Try(pending)) pending_.push_back(std::move(pending));
      counters_.repair_pending_count.store(pending_.size(), std::memory_order_relaxed);
    }
  }
}

void Repairer::TakeLost() {
  for (LostChunk& lost : store_.TakeLost()) {
    if (pending_.size() == ChunkStore::kLostCountMax) {
      GiveUp(lost, absl::ResourceExhaustedError("too many chunks are lost at once"));
      continue;
    }
    pending_.push_back({.lost = std::move(lost), .due = options_.clock->Now()});
  }
  counters_.repair_pending_count.store(pending_.size(), std::memory_order_relaxed);
}

bool Repairer::Try(Pending& pending) {
  const Instant now = options_.clock->Now();
  if (now < pending.due) return false;
  absl::StatusOr<RepairSource::Restored> restored = absl::NotFoundError("not here");
  if (store_.table().Contains(pending.lost.id)) {
    // It has been put meanwhile: by the copy maker, which is at times faster, or by a client.
    restored = PutMeanwhile(pending.lost);
    if (!restored.ok()) return true;
  } else {
    restored = source_.Restore(pending.lost, now + options_.attempt_timeout);
  }
  absl::Status status = restored.status();
  if (status.ok()) status = Complete(pending.lost, *restored);
  if (status.ok()) {
    counters_.repaired_count.fetch_add(1, std::memory_order_relaxed);
    Log().info("{}: chunk {} was damaged and is here again, from a replica", options_.name,
               pending.lost.id.ToHex());
    return true;
  }
  if (absl::IsCancelled(status)) return false;  // the holder ends
  ++pending.attempt_count;
  if (absl::IsFailedPrecondition(status) || pending.attempt_count == options_.attempt_count_max) {
    GiveUp(pending.lost, status);
    return true;
  }
  pending.due = options_.clock->Now() + options_.pause_min * (1 << (pending.attempt_count - 1));
  return false;
}

absl::StatusOr<RepairSource::Restored> Repairer::PutMeanwhile(const LostChunk& lost) {
  CKV_ASSIGN_OR_RETURN(const ChunkLocator locator, store_.table().Locate(lost.id));
  CKV_ASSIGN_OR_RETURN(const ChunkRows rows, store_.OpenRows(locator));
  for (const std::string& reader : lost.readers)
    if (store_.table().Find(lost.id, rows.geometry(), reader).ok())
      return RepairSource::Restored{.geometry = rows.geometry(), .tenant = reader};
  // Others put it, perhaps with other rows: previous readers must show that they have the same.
  return absl::NotFoundError("no previous reader put it");
}

absl::Status Repairer::Complete(const LostChunk& lost, const RepairSource::Restored& restored) {
  for (const std::string& reader : lost.readers) {
    if (reader == restored.tenant || restored.tenant.empty()) continue;
    CKV_ASSIGN_OR_RETURN(ChunkInfo info,
                         store_.InfoOf(lost.id, restored.geometry, restored.tenant));
    absl::Status reported = store_.Begin(std::move(info), restored.geometry, reader).status();
    if (!absl::IsAlreadyExists(reported)) return reported;
  }
  return lost.kept ? store_.Keep(lost.id, true) : absl::OkStatus();
}

void Repairer::GiveUp(const LostChunk& lost, const absl::Status& status) {
  // Dropped, or moved. A restart of the directory is no explanation, because the attempts took too
  // long.
  if (absl::IsNotFound(status)) {
    Log().info("{}: chunk {} was damaged, and no corpus places it here any more", options_.name,
               lost.id.ToHex());
    return;
  }
  counters_.repair_failure_count.fetch_add(1, std::memory_order_relaxed);
  Log().error("{}: chunk {} was damaged and is lost here: {}", options_.name, lost.id.ToHex(),
              std::string(status.message()));
}

}  // namespace ckv
