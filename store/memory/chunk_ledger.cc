// Facts about chunks in shards, each with its lock. Open, Restore and Close begin and end an entry;
// readers, marks and times change in between. A change that a restart must keep sets `unsaved`, and
// UnsavedFacts takes it once for the file; FactsNotSaved returns it. TakeDue ends marks and chunks
// whose time is over. No call holds two locks.

#include "store/memory/chunk_ledger.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/status.h"
#include "store/memory/chunk_expiry.h"

namespace ckv {
namespace {

uint64_t MillisecondsUp(Duration duration) {
  return static_cast<uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

absl::Status NotKnown(const ChunkId& id) {
  return absl::NotFoundError(absl::StrFormat("chunk %s is not here", id.ShortHex()));
}

}  // namespace

struct ChunkLedger::Entry {
  std::vector<std::string> readers = {};  // none if everyone may read
  Instant touched;
  bool for_everyone = false;
  bool kept = false;
  bool unsaved = false;

  bool MayRead(std::string_view tenant) const {
    return for_everyone || std::find(readers.begin(), readers.end(), tenant) != readers.end();
  }
  void SetReaders(const std::vector<std::string>& tenants) {
    for_everyone = std::find(tenants.begin(), tenants.end(), "") != tenants.end();
    if (!for_everyone) readers = tenants;
  }
};

struct alignas(64) ChunkLedger::Shard {
  absl::Mutex mu;
  absl::flat_hash_map<ChunkId, Entry> entries ABSL_GUARDED_BY(mu);
  ChunkExpiry expiry ABSL_GUARDED_BY(mu);

  // Null if there is none.
  Entry* Find(const ChunkId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto found = entries.find(id);
    return found == entries.end() ? nullptr : &found->second;
  }
  ChunkFacts FactsOf(const ChunkId& id, const Entry& entry, Instant now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    ChunkFacts facts = {.readers = entry.readers, .kept = entry.kept};
    if (entry.for_everyone) facts.readers = {""};
    const ChunkExpiry::Times* times = expiry.Find(id);
    if (times == nullptr) return facts;
    facts.ttl_ms = MillisecondsUp(times->ttl);
    if (facts.kept && times->kept_until != kInstantMax) {
      const Duration left = std::max(times->kept_until - now, Duration(0));
      facts.kept_until_ms = WallClockMilliseconds() + MillisecondsUp(left);
    }
    return facts;
  }
  void SetKept(const ChunkId& id, Entry& entry, bool keep, Instant until)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const ChunkExpiry::Times* times = expiry.Find(id);
    const bool had_end = times != nullptr && times->kept_until != kInstantMax;
    entry.unsaved |= entry.kept != keep || had_end || until != kInstantMax;
    entry.kept = keep;
    if (keep) expiry.Keep(id, until);
    if (!keep) expiry.Unkeep(id);
  }
};

ChunkLedger::ChunkLedger(Clock* clock) : clock_(clock), shards_(new Shard[kShardCount]) {}
ChunkLedger::~ChunkLedger() = default;

// Ids are hashes already.
ChunkLedger::Shard& ChunkLedger::ShardOf(const ChunkId& id) const {
  return shards_[id.bytes[8] % kShardCount];
}

void ChunkLedger::Open(const ChunkId& id, std::string_view tenant, Duration ttl) {
  const Instant now = clock_->Now();
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  Entry& entry = shard.entries[id];
  entry = {.touched = now, .unsaved = ttl > Duration(0)};
  entry.SetReaders({std::string(tenant)});
  shard.expiry.Put(id, ttl, now);
}

void ChunkLedger::Restore(const ChunkId& id, const ChunkFacts& facts) {
  // Whatever a file says: sums with it stay within a Duration.
  constexpr uint64_t kMillisecondsMax = uint64_t{1} << 40;
  const uint64_t wall_ms = WallClockMilliseconds();
  const Instant now = clock_->Now();
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  Entry& entry = shard.entries[id];
  entry = {.touched = now, .kept = facts.kept};
  entry.SetReaders(facts.readers);
  shard.expiry.Put(id, std::chrono::milliseconds(std::min(facts.ttl_ms, kMillisecondsMax)), now);
  if (!facts.kept) return;
  if (facts.kept_until_ms == 0) return shard.expiry.Keep(id, kInstantMax);
  const uint64_t left_ms = facts.kept_until_ms - std::min(wall_ms, facts.kept_until_ms);
  shard.expiry.Keep(id, now + std::chrono::milliseconds(std::min(left_ms, kMillisecondsMax)));
}

absl::Status ChunkLedger::Close(const ChunkId& id, const DropIf& only) {
  const Instant now = clock_->Now();
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  const Entry* entry = shard.Find(id);
  if (entry == nullptr) return NotKnown(id);
  if (only.not_kept && entry->kept)
    return absl::FailedPreconditionError(absl::StrFormat("chunk %s is kept", id.ShortHex()));
  const ChunkExpiry::Times* times = shard.expiry.Find(id);
  if ((only.idle_min > Duration(0) && now - entry->touched < only.idle_min) ||
      (only.expired && (times == nullptr || times->drop_at > now))) {
    return absl::FailedPreconditionError(
        absl::StrFormat("chunk %s was put or asked for just now", id.ShortHex()));
  }
  shard.expiry.Forget(id);
  shard.entries.erase(id);
  return absl::OkStatus();
}

bool ChunkLedger::MayRead(const ChunkId& id, std::string_view tenant) const {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  const Entry* entry = shard.Find(id);
  return entry != nullptr && entry->MayRead(tenant);
}

absl::Status ChunkLedger::AddReader(const ChunkId& id, std::string_view tenant) {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  Entry* entry = shard.Find(id);
  if (entry == nullptr) return NotKnown(id);
  if (entry->MayRead(tenant)) return absl::OkStatus();
  if (!tenant.empty() && entry->readers.size() == kReaderCountMax) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "chunk %s: already of %d tenants: put it for everyone", id.ShortHex(), kReaderCountMax));
  }
  if (tenant.empty()) {
    entry->for_everyone = true;
    entry->readers = {};
  } else {
    entry->readers.emplace_back(tenant);
  }
  entry->unsaved = true;
  return absl::OkStatus();
}

absl::Status ChunkLedger::SetKept(const ChunkId& id, bool keep, Instant until) {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  Entry* entry = shard.Find(id);
  if (entry == nullptr) return NotKnown(id);
  shard.SetKept(id, *entry, keep, until);
  return absl::OkStatus();
}

absl::Status ChunkLedger::Keep(const ChunkId& id, bool keep) {
  return SetKept(id, keep, kInstantMax);
}

absl::Status ChunkLedger::KeepFor(const ChunkId& id, Duration time) {
  return SetKept(id, /*keep=*/true, clock_->Now() + time);
}

bool ChunkLedger::IsKept(const ChunkId& id) const {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  const Entry* entry = shard.Find(id);
  return entry != nullptr && entry->kept;
}

absl::Status ChunkLedger::PutAgain(const ChunkId& id, Duration ttl) {
  const Instant now = clock_->Now();
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  Entry* entry = shard.Find(id);
  if (entry == nullptr) return NotKnown(id);
  if (shard.expiry.PutAgain(id, ttl, now)) entry->unsaved = true;
  return absl::OkStatus();
}

bool ChunkLedger::Touch(const ChunkId& id) {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  Entry* entry = shard.Find(id);
  if (entry != nullptr) entry->touched = clock_->Now();
  return entry != nullptr;
}

ChunkLedger::Glance ChunkLedger::GlanceAt(const ChunkId& id) const {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  const Entry* entry = shard.Find(id);
  if (entry == nullptr) return {};
  return {entry->kept, std::max(clock_->Now() - entry->touched, Duration(0))};
}

std::optional<ChunkFacts> ChunkLedger::FactsOf(const ChunkId& id) const {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  const Entry* entry = shard.Find(id);
  if (entry == nullptr) return std::nullopt;
  return shard.FactsOf(id, *entry, clock_->Now());
}

std::optional<ChunkFacts> ChunkLedger::UnsavedFacts(const ChunkId& id) {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  Entry* entry = shard.Find(id);
  if (entry == nullptr || !entry->unsaved) return std::nullopt;
  entry->unsaved = false;
  return shard.FactsOf(id, *entry, clock_->Now());
}

void ChunkLedger::FactsNotSaved(const ChunkId& id) {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mu);
  if (Entry* entry = shard.Find(id)) entry->unsaved = true;
}

bool ChunkLedger::AnyDue() const {
  const Instant now = clock_->Now();
  for (size_t i = 0; i < kShardCount; ++i) {
    Shard& shard = shards_[i];
    absl::MutexLock lock(&shard.mu);
    if (shard.expiry.NextDue(now)) return true;
  }
  return false;
}

ChunkLedger::Due ChunkLedger::TakeDue() {
  const Instant now = clock_->Now();
  Due due;
  for (size_t i = 0; i < kShardCount; ++i) {
    Shard& shard = shards_[i];
    absl::MutexLock lock(&shard.mu);
    while (const std::optional<ChunkId> id = shard.expiry.NextDue(now)) {
      Entry* entry = shard.Find(*id);
      if (!entry->kept) {
        due.expired = id;
        return due;
      }
      if (due.unkept.size() == kMarkEndCountMax) return due;
      shard.SetKept(*id, *entry, /*keep=*/false, kInstantMax);
      due.unkept.push_back(*id);
    }
  }
  return due;
}

}  // namespace ckv
