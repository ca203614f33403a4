// The dispatcher's way with requests whose chunks are on disk.

#include <utility>

#include "proto/base/status.h"
#include "server/dispatch/dispatcher.h"

namespace ckv {
namespace {

// A request whose chunks do not fit beside those that others are reading comes again after about
// what reading a chunk of 64 MB takes.
constexpr uint32_t kColdRetryUs = 50'000;
// Times that chunks are read for one request.
constexpr uint32_t kColdCountMax = 3;

}  // namespace

// A request comes here once more if a chunk that it names went cold, or came anew, while others
// were read for it. Its rows read so far are freed, since ColdReads starts no read while they are
// held.
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
    // Nothing is read for whom nobody answers any more.
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
