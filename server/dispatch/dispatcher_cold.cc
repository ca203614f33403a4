// How the dispatcher handles requests whose chunks are on disk.

#include <utility>

#include "proto/base/status.h"
#include "server/dispatch/dispatcher.h"

namespace ckv {
namespace {

// The retry hint for a request whose chunks do not fit next to those that others are reading. It is
// about the time to read a chunk of 64 MB.
constexpr uint32_t kColdRetryUs = 50'000;
// How often chunks are read for one request.
constexpr uint32_t kColdCountMax = 3;

}  // namespace

// Called again for a request if a chunk that it names became cold, or was put again, while others
// were read for it. The rows read for it so far are freed, because ColdReads starts no read while
// they are held.
void Dispatcher::AdmitCold(const ReadyRequest& ready) {
  ReadyRequest again = ready;
  again.cold_rows.reset();
  if (again.cold_count++ < kColdCountMax) {
    AdmitTo(QueueKind::kCold, again);
    return;
  }
  PostError(again,
            absl::UnavailableError("the request's chunks go to disk as fast as they are read"),
            kColdRetryUs, counters_);
}

// The rows stay with the request, which waits in its queue again.
void Dispatcher::FinishColdRead() {
  ColdReads::Done done = cold_reads_.Finish();
  counters_.cold_read.AddAlone(options_.clock->Now() - cold_started_);
  Bump(counters_.stripe_hit_count, done.stripe_hit_count);
  Bump(counters_.stripe_read_count, done.stripe_read_count);
  counters_.stripe_bytes.store(stripes_.bytes(), std::memory_order_relaxed);
  if (done.lane->broken) return;
  if (done.status.ok()) {
    Enqueue(done.ready);
  } else {
    const bool full = absl::IsResourceExhausted(done.status);
    PostError(done.ready, done.status, full ? kColdRetryUs : 0, counters_);
  }
}

void Dispatcher::StartColdReads() {
  FairQueue& colds = queue(QueueKind::kCold);
  while (colds.count() != 0 && cold_reads_.idle()) {
    FairQueue::Flow* flow = colds.Next();
    const ReadyRequest ready = flow->front();
    HolderLane& lane = *ready.from;
    colds.Pop(*flow, kFetchBodyBytesMax);
    // Nothing is read for a request that can no longer be answered.
    cold_started_ = options_.clock->Now();
    if (absl::Status bad = CheckTurn(ready, *lease_, cold_started_, counters_); !bad.ok()) {
      PostError(ready, bad, /*retry_after_us=*/0, counters_);
      continue;
    }
    Bump(counters_.cold_count);
    if (absl::Status bad = cold_reads_.Start(ready, lane); !bad.ok()) Break(lane, bad);
  }
}

}  // namespace ckv
