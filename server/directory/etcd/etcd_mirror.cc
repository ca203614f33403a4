// The thread watches from the revision that the tables have. A watch belongs to a round: Pause and
// Resume begin another, and then what the earlier watch still sees counts no more.

#include "server/directory/etcd/etcd_mirror.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "server/directory/etcd/etcd_events.h"

namespace ckv {
namespace {

// After an error of the watch.
constexpr Duration kWatchPause = std::chrono::milliseconds(200);
constexpr Duration kPartsMax = std::chrono::seconds(5);

}  // namespace

EtcdMirror::EtcdMirror(EtcdClient* client, EtcdLayout layout, Clock* clock,
                       DirectoryChanges* changes)
    : client_(*client), layout_(std::move(layout)), clock_(*clock), changes_(*changes) {}

EtcdMirror::~EtcdMirror() {
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  client_.StopWatches();
  if (thread_.joinable()) thread_.join();
}

absl::Status EtcdMirror::Open(Instant deadline) {
  {
    absl::MutexLock lock(&mu_);
    CKV_RETURN_IF_ERROR(ReadAll(deadline));
  }
  thread_ = Thread([this] { Run(); });
  return absl::OkStatus();
}

absl::Status EtcdMirror::ReadAll(Instant deadline) {
  reading_ = true;
  mu_.Unlock();
  absl::StatusOr<EtcdIndex> index = ReadState(deadline);
  mu_.Lock();
  reading_ = false;
  if (!index.ok()) return index.status();
  index_ = *std::move(index);
  broken_ = absl::OkStatus();
  ++round_;
  return absl::OkStatus();
}

absl::StatusOr<EtcdIndex> EtcdMirror::ReadState(Instant deadline) {
  absl::btree_set<CorpusKey> corpora;
  absl::btree_set<HolderId> members, draining;
  auto index = ReadEtcdState(client_, layout_, deadline, [&](const DirectoryChange& change) {
    if (change.kind == ChangeKind::kPublish) corpora.insert(KeyOf(change));
    if (change.kind == ChangeKind::kMember) members.insert(change.member.id);
    if (change.kind == ChangeKind::kDrain) draining.insert({change.holder});
    changes_.Mirror(change);
    absl::MutexLock lock(&mu_);
    return ending_ ? absl::CancelledError("the directory ends") : absl::OkStatus();
  });
  if (index.ok()) changes_.MirrorOnly(corpora, members, draining);
  return index;
}

absl::Status EtcdMirror::ReadAgain() {
  // A look first: without an answer, reading would take its whole time limit.
  const auto answers =
      client_.ReadKeys(EtcdKeys::One(layout_.Sequence()), 0, clock_.Now() + kLookMax,
                       [](const EtcdPair&) { return absl::OkStatus(); });
  CKV_RETURN_IF_ERROR(answers.status());
  absl::MutexLock lock(&mu_);
  if (ending_ || paused_ || reading_ || broken_.ok()) return absl::OkStatus();
  return ReadAll(clock_.Now() + kReadMax);
}

void EtcdMirror::Run() {
  bool is_reported = false;
  while (true) {
    uint64_t round = 0;
    int64_t revision = 0;
    absl::Status broken;
    {
      absl::MutexLock lock(&mu_);
      clock_.Await(mu_, absl::Condition(this, &EtcdMirror::IsAwake), kInstantMax);
      if (ending_) return;
      broken = broken_;
      round = round_;
      revision = index_.revision + 1;
    }
    if (!broken.ok()) {
      if (!std::exchange(is_reported, true))
        Log().warn("directory: reads the state from etcd again: {}", broken.ToString());
      const absl::Status read = ReadAgain();
      absl::MutexLock lock(&mu_);
      stats_.last_error = read;
      if (!read.ok()) clock_.Await(mu_, absl::Condition(&ending_), clock_.Now() + kWatchPause);
      continue;
    }
    is_reported = false;
    const absl::Status ended = Watch(round, revision);
    absl::MutexLock lock(&mu_);
    if (ending_) return;
    if (round != round_ || paused_) continue;
    if (absl::IsOutOfRange(ended)) broken_ = ended;
    stats_.last_error = ended;
    clock_.Await(mu_, absl::Condition(&ending_), clock_.Now() + kWatchPause);
  }
}

absl::Status EtcdMirror::Watch(uint64_t round, int64_t revision) {
  return client_.Watch(
      EtcdKeys::Prefix(layout_.prefix()), revision,
      [&](std::span<const EtcdEvent> events, int64_t seen) { return Take(round, events, seen); });
}

bool EtcdMirror::Take(uint64_t round, std::span<const EtcdEvent> events, int64_t seen) {
  absl::MutexLock lock(&mu_);
  if (ending_ || paused_ || reading_ || round != round_ || !broken_.ok()) return false;
  const auto read_parts = [this](uint64_t version, uint32_t count, int64_t revision) {
    return ReadParts(version, count, revision);
  };
  broken_ = ApplyEtcdEvents(
      layout_, events, read_parts,
      [this](const DirectoryChange& change) { changes_.Mirror(change); }, index_);
  if (!broken_.ok()) return false;
  index_.revision = std::max(index_.revision, seen);
  stats_.last_error = absl::OkStatus();
  return true;
}

absl::StatusOr<std::string> EtcdMirror::ReadParts(uint64_t version, uint32_t count,
                                                  int64_t revision) {
  std::string record;
  uint32_t found = 0;
  const auto read = client_.Read(EtcdKeys::Prefix(layout_.PartsOf(version)), revision,
                                 clock_.Now() + kPartsMax, [&](const EtcdPair& part) {
                                   record += part.value;
                                   ++found;
                                   return absl::OkStatus();
                                 });
  CKV_RETURN_IF_ERROR(read.status());
  if (found == count) return record;
  return absl::DataLossError(absl::StrFormat("%d parts of %d", found, count));
}

absl::StatusOr<EtcdIndex> EtcdMirror::Pause(int64_t revision, Instant deadline) {
  absl::MutexLock lock(&mu_);
  const auto has_it = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !reading_ && broken_.ok() && index_.revision >= revision;
  };
  const auto is_free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !reading_; };
  const Instant wait_until = std::min(deadline, clock_.Now() + kWatchWaitMax);
  if (!clock_.Await(mu_, absl::Condition(&has_it), wait_until)) {
    if (!clock_.Await(mu_, absl::Condition(&is_free), deadline))
      return absl::DeadlineExceededError("the state is still being read from etcd");
    if (!has_it()) CKV_RETURN_IF_ERROR(ReadAll(deadline));
  }
  paused_ = true;
  ++round_;
  return index_;
}

bool EtcdMirror::Await(int64_t revision, Instant deadline) {
  absl::MutexLock lock(&mu_);
  const auto has_it = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !paused_ && !reading_ && broken_.ok() && index_.revision >= revision;
  };
  return clock_.Await(mu_, absl::Condition(&has_it), deadline);
}

void EtcdMirror::Resume(EtcdIndex index, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  index_ = std::move(index);
  broken_ = why;
  paused_ = false;
  ++round_;
}

EtcdMirror::Stats EtcdMirror::stats() const {
  absl::MutexLock lock(&mu_);
  Stats stats = stats_;
  stats.revision = index_.revision;
  return stats;
}

}  // namespace ckv
