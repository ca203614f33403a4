// Puts chunks on their holders with one thread for each holder. RunPuts, in order: starts the
// threads, each with a queue; Feed reads one chunk after another on the calling thread, and pushes
// it to the queues of its holders; each thread puts its chunks (Take); the queues are closed and
// the threads joined. PutRun limits how many chunks are in flight, and keeps the first error, which
// stops the others. CheckPuts then queries every copy, and puts what was lost meanwhile, in up to
// three rounds.

#include "client/publish/chunk_puts.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/grpc/grpc_status.h"
#include "client/publish/chunk_copy.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/host/thread.h"
#include "store/memory/chunk_table.h"

namespace ckv {
namespace {

// Each round puts what the previous one missed. A second is needed only if others drop chunks.
constexpr int kCheckRoundCountMax = 3;

using Placement = std::vector<std::vector<HolderId>>;

bool IsOn(const std::vector<HolderId>& holders, const HolderId& holder) {
  return std::find(holders.begin(), holders.end(), holder) != holders.end();
}

// State that the threads of one call share: the first error, and how many chunks are in flight.
class PutRun {
 public:
  void Fail(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    status_.Update(status);
  }
  bool failed() const {
    absl::MutexLock lock(&mu_);
    return !status_.ok();
  }
  absl::Status status() const {
    absl::MutexLock lock(&mu_);
    return status_;
  }

  // Waits until another chunk may be read. Returns false if the run has failed. Every chunk in
  // flight ends by its puts' deadlines.
  bool BeginChunk() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &PutRun::MayBegin));
    if (status_.ok()) ++in_flight_;
    return status_.ok();
  }
  void EndChunk() {
    absl::MutexLock lock(&mu_);
    --in_flight_;
  }

 private:
  bool MayBegin() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return in_flight_ < kChunksInFlightMax || !status_.ok();
  }

  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  uint32_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
};

struct Item {
  uint32_t ordinal = 0;
  std::shared_ptr<const SourceChunk> chunk;
};

// The chunks that are due on one holder, at most kChunksInFlightMax.
class ItemQueue {
 public:
  void Push(Item item) {
    absl::MutexLock lock(&mu_);
    items_.push_back(std::move(item));
  }
  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  // Waits for the next item. Returns nothing once the queue is closed and empty.
  std::optional<Item> Pop() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &ItemQueue::Ready));
    if (items_.empty()) return std::nullopt;
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closed_ || !items_.empty(); }

  absl::Mutex mu_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// One holder's thread, its queue, and what it did: read by others after the join.
struct HolderPuts {
  const Member* holder = nullptr;
  ItemQueue queue;
  HolderTally tally;
  std::vector<uint32_t> found;  // ordinals
  Thread thread;
};

// Starts a thread, or fails the run: the system may have no more.
template <typename Work>
Thread StartThread(PutRun& run, Work work) {
  try {
    return Thread(std::move(work));
  } catch (const std::system_error& error) {
    run.Fail(absl::ResourceExhaustedError(
        absl::StrFormat("no thread for a holder's puts: %s", error.what())));
    return {};
  }
}

void Report(const std::function<void(uint64_t)>& observer, uint64_t bytes) {
  if (observer && bytes > 0) observer(bytes);
}

// Puts one chunk on one holder. For a plan, only queries whether the holder has it.
absl::Status Take(const HolderCalls& calls, const Item& item, bool plan_only,
                  const PutObserver& observer, HolderPuts& lane) {
  const SourceChunk& chunk = *item.chunk;
  const uint64_t row_bytes = chunk.info.token_count() * calls.geometry.token_bytes();
  CopyOutcome outcome;
  if (plan_only) {
    CKV_ASSIGN_OR_RETURN(outcome.found,
                         HasChunk(calls, chunk.info.id, DigestOf(chunk.info.tensor_checksums)));
    outcome.bytes_sent = outcome.found ? 0 : row_bytes;
    Report(observer.on_sent, outcome.bytes_sent);
  } else {
    CKV_ASSIGN_OR_RETURN(
        outcome, CopyChunk(calls, chunk, [&](uint64_t bytes) { Report(observer.on_sent, bytes); }));
  }
  lane.tally.bytes_sent += outcome.bytes_sent;
  if (!outcome.found) {
    ++lane.tally.copies_sent;
    return absl::OkStatus();
  }
  ++lane.tally.copies_found;
  lane.tally.bytes_sent_found += outcome.bytes_sent;
  lane.found.push_back(item.ordinal);
  Report(observer.on_found, row_bytes - outcome.bytes_sent);
  return absl::OkStatus();
}

// Reads the chunks and hands them to their lanes.
void Feed(ChunkSource& source, const Placement& placement,
          std::vector<std::unique_ptr<HolderPuts>>& lanes, PutRun& run,
          std::vector<uint64_t>& digests) {
  for (uint32_t i = 0; i < placement.size(); ++i) {
    if (placement[i].empty()) continue;
    if (!run.BeginChunk()) return;
    absl::StatusOr<SourceChunk> read = source.Read(i);
    if (!read.ok()) {
      run.EndChunk();
      return run.Fail(read.status());
    }
    digests[i] = DigestOf(read->info.tensor_checksums);
    // In flight until the last holder's thread lets go of it.
    const std::shared_ptr<const SourceChunk> chunk(new SourceChunk(*std::move(read)),
                                                   [&run](const SourceChunk* done) {
                                                     delete done;
                                                     run.EndChunk();
                                                   });
    for (const std::unique_ptr<HolderPuts>& lane : lanes) {
      if (IsOn(placement[i], lane->holder->id)) lane->queue.Push({i, chunk});
    }
  }
}

absl::Status HowFar(const absl::Status& status, const PutReport& report,
                    const Placement& placement) {
  uint32_t put = 0, wanted = 0;
  for (const auto& [name, tally] : report.tallies) put += tally.copies_sent + tally.copies_found;
  for (const auto& chunk_holders : placement) wanted += chunk_holders.size();
  return absl::Status(
      status.code(),
      absl::StrFormat("%s\n  %d of %d chunk copies are put and nothing is published; run the same "
                      "command again: what is put is reused",
                      std::string(status.message()), put, wanted));
}

absl::StatusOr<PutReport> RunPuts(ChunkSource& source, const Placement& placement,
                                  std::span<const Member> holders, const std::string& tenant,
                                  Clock& clock, const PutObserver& observer, bool plan_only,
                                  Instant deadline) {
  PutReport report;
  report.digests.resize(placement.size());
  report.found.resize(placement.size());
  PutRun run;
  std::vector<std::unique_ptr<HolderPuts>> lanes;
  for (const Member& holder : holders) {
    lanes.push_back(std::make_unique<HolderPuts>());
    lanes.back()->holder = &holder;
    lanes.back()->thread = StartThread(run, [&, lane = lanes.back().get()] {
      const auto stub = ConnectHolder(*lane->holder);
      const HolderCalls calls{*stub, *lane->holder, source.geometry(), tenant, clock, deadline};
      while (std::optional<Item> item = lane->queue.Pop()) {
        if (run.failed()) continue;  // lets go of the rest
        const absl::Status status = Take(calls, *item, plan_only, observer, *lane);
        if (!status.ok()) run.Fail(status);
      }
    });
  }
  if (!run.failed()) Feed(source, placement, lanes, run, report.digests);
  for (const std::unique_ptr<HolderPuts>& lane : lanes) lane->queue.Close();
  for (const std::unique_ptr<HolderPuts>& lane : lanes) {
    if (lane->thread.joinable()) lane->thread.join();
    report.tallies[lane->holder->id.name] = lane->tally;
    for (const uint32_t ordinal : lane->found) report.found[ordinal] = true;
  }
  const absl::Status status = run.status();
  if (status.ok()) return report;
  return plan_only ? status : HowFar(status, report, placement);
}

// Returns the part of `placement` that is not there.
absl::StatusOr<Placement> FindMissing(const ChunkSource& source, const Placement& placement,
                                      std::span<const Member> holders, const std::string& tenant,
                                      Clock& clock, const std::vector<uint64_t>& digests,
                                      Instant deadline) {
  PutRun run;
  std::vector<std::vector<uint32_t>> missing(holders.size());
  std::vector<Thread> threads;
  for (size_t h = 0; h < holders.size(); ++h) {
    threads.push_back(StartThread(run, [&, h] {
      const auto stub = ConnectHolder(holders[h]);
      const HolderCalls calls{*stub, holders[h], source.geometry(), tenant, clock, deadline};
      for (uint32_t i = 0; i < placement.size() && !run.failed(); ++i) {
        if (!IsOn(placement[i], holders[h].id)) continue;
        const auto there = HasChunk(calls, source.chunks()[i].id, digests[i]);
        if (!there.ok()) {
          run.Fail(there.status());
        } else if (!*there) {
          missing[h].push_back(i);
        }
      }
    }));
  }
  for (Thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  CKV_RETURN_IF_ERROR(run.status());
  Placement result(placement.size());
  for (size_t h = 0; h < holders.size(); ++h) {
    for (const uint32_t ordinal : missing[h]) result[ordinal].push_back(holders[h].id);
  }
  return result;
}

}  // namespace

absl::StatusOr<PutReport> PutChunks(ChunkSource& source, const Placement& placement,
                                    std::span<const Member> holders, const std::string& tenant,
                                    Clock& clock, const PutObserver& observer, Instant deadline) {
  return RunPuts(source, placement, holders, tenant, clock, observer, /*plan_only=*/false,
                 deadline);
}

absl::StatusOr<PutReport> PlanPuts(ChunkSource& source, const Placement& placement,
                                   std::span<const Member> holders, const std::string& tenant,
                                   Clock& clock, const PutObserver& observer) {
  return RunPuts(source, placement, holders, tenant, clock, observer, /*plan_only=*/true,
                 kInstantMax);
}

absl::Status CheckPuts(ChunkSource& source, const Placement& placement,
                       std::span<const Member> holders, const std::string& tenant, Clock& clock,
                       PutReport& report, Instant deadline) {
  for (int round = 0;; ++round) {
    CKV_ASSIGN_OR_RETURN(const Placement missing, FindMissing(source, placement, holders, tenant,
                                                              clock, report.digests, deadline));
    size_t count = 0;
    for (const auto& chunk_holders : missing) count += chunk_holders.size();
    if (count == 0) return absl::OkStatus();
    if (round == kCheckRoundCountMax) {
      return absl::AbortedError(absl::StrFormat(
          "%d chunk copies were put and are gone again, %d times over; nothing is published\n  "
          "someone collects garbage, or a holder drops what it has: run the same command again",
          count, kCheckRoundCountMax));
    }
    CKV_ASSIGN_OR_RETURN(const PutReport again,
                         PutChunks(source, missing, holders, tenant, clock, {}, deadline));
    for (const auto& [name, tally] : again.tallies) {
      HolderTally& sum = report.tallies[name];
      // A copy that vanished and was put again counts once; its bytes count each time they were
      // sent.
      sum.bytes_sent += tally.bytes_sent;
      sum.bytes_sent_found += tally.bytes_sent_found;
    }
  }
}

}  // namespace ckv
