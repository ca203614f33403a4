// What the dispatcher does with requests whose chunks are on disk.

#include <utility>

#include "proto/status.h"
#include "server/dispatcher.h"

namespace ckv {
namespace {

// A request whose chunks do not fit beside those that others are reading comes again after about
// what reading a chunk of 64 MB takes.
constexpr uint32_t kColdRetryUs = 50'000;
// Times that chunks are read for one request.
constexpr uint32_t kColdCountMax = 3;

}  // namespace

// A request comes once more where a chunk that it names went cold, or came anew, while others were
// read for it. What was read is let go here: rows that wait would keep those from being read which
// this waits for.
void Dispatcher::AdmitCold(const ReadyRequest& ready) {
  ReadyRequest again = ready;
  again.cold_rows.reset();
  if (again.cold_count++ < kColdCountMax) {
    AdmitTo(colds_, *ready.from->owner->colds, push_admission_, again);
    return;
  }
  PostError(again,
            absl::UnavailableError("the request's chunks go to disk as fast as they are read"),
            kColdRetryUs, counters_);
}

// What was read stays with the request, which is served with those that wait already.
void Dispatcher::FinishColdRead() {
  ColdReads::Done done = cold_reads_.Finish();
  if (done.lane->broken) return;
  if (done.status.ok()) {
    Enqueue(*done.lane->owner, done.ready);
  } else {
    const bool full = absl::IsResourceExhausted(done.status);
    PostError(done.ready, done.status, full ? kColdRetryUs : 0, counters_);
  }
}

void Dispatcher::StartColdReads() {
  while (colds_.count() != 0 && cold_reads_.idle()) {
    FairQueue::Flow* flow = colds_.Next();
    const ReadyRequest ready = flow->front();
    HolderLane& lane = *ready.from;
    colds_.Pop(*flow, kFetchBodyBytesMax);
    // Nothing is read for whom nobody answers any more.
    if (absl::Status bad = CheckTurn(ready, *lease_, options_.clock->Now(), counters_); !bad.ok()) {
      PostError(ready, bad, /*retry_after_us=*/0, counters_);
      continue;
    }
    Bump(counters_.cold_count);
    if (absl::Status bad = cold_reads_.Start(ready, lane); !bad.ok()) Break(lane, bad);
  }
}

}  // namespace ckv
