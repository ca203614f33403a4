#include "server/upkeep/chunk_push.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/host/thread.h"

namespace ckv {

absl::Status ChunkPush::Run(absl::FunctionRef<bool(const PushedChunk&)> on_chunk,
                            absl::FunctionRef<bool()> stopped) {
  std::vector<Thread> threads;
  const size_t count = std::min<size_t>(kPushDepth, order_.ids.size());
  for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { Work(); });
  absl::Status status = Notify(on_chunk, stopped);
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  // Chunks in flight behind the one that failed would only delay the answer.
  if (!status.ok()) target_.Cancel();
  for (Thread& thread : threads) thread.join();
  return status;
}

absl::Status ChunkPush::Notify(absl::FunctionRef<bool(const PushedChunk&)> on_chunk,
                               absl::FunctionRef<bool()> stopped) {
  for (size_t i = 0; i < order_.ids.size();) {
    Outcome outcome;
    {
      absl::MutexLock lock(&mu_);
      const auto done = [this, i]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return outcomes_[i].has_value(); };
      clock_.Await(mu_, absl::Condition(&done), clock_.Now() + kPushSlice);
      outcome = std::move(outcomes_[i]);
    }
    if (stopped()) return absl::CancelledError("push: stopped; what was pushed is there");
    if (!outcome) continue;
    CKV_RETURN_IF_ERROR(outcome->status());
    if (!on_chunk(**outcome)) return absl::CancelledError("push: the caller has ended the stream");
    ++i;
  }
  return absl::OkStatus();
}

void ChunkPush::Work() {
  while (true) {
    size_t mine = 0;
    {
      absl::MutexLock lock(&mu_);
      if (stop_ || next_ == order_.ids.size()) return;
      mine = next_++;
    }
    absl::StatusOr<PushedChunk> pushed = PushOne(order_.ids[mine]);
    if (!pushed.ok())
      pushed = Annotate(pushed.status(),
                        absl::StrFormat("pushing chunk %s", order_.ids[mine].ShortHex()));
    absl::MutexLock lock(&mu_);
    stop_ = stop_ || !pushed.ok();
    outcomes_[mine] = std::move(pushed);
  }
}

absl::StatusOr<PushedChunk> ChunkPush::PushOne(const ChunkId& id) {
  const Instant deadline = std::min(order_.deadline, clock_.Now() + kPushPutTimeout);
  CKV_ASSIGN_OR_RETURN(const ChunkLocator locator,
                       store_.table().Find(id, order_.geometry, order_.tenant));
  CKV_ASSIGN_OR_RETURN(const ChunkRows rows, store_.OpenRows(locator));
  PushedChunk pushed = {.id = id};
  CKV_ASSIGN_OR_RETURN(pushed.reused, IsThere(rows.info(), deadline));
  if (pushed.reused) return pushed;
  const auto put = [&] {
    return target_.Put(rows.info(), order_.geometry, order_.tenant, &rows, deadline,
                       pushed.bytes_sent);
  };
  absl::Status status = put();
  // A copy was there and was dropped just then. One retry is enough, unless drops continue.
  if (absl::IsAborted(status)) status = put();
  pushed.reused = absl::IsAlreadyExists(status);
  if (!status.ok() && !pushed.reused) return status;
  return pushed;
}

absl::StatusOr<bool> ChunkPush::IsThere(const ChunkInfo& info, Instant deadline) {
  const auto present = target_.Query(info.id, order_.geometry, order_.tenant, deadline);
  if (absl::IsNotFound(present.status())) return false;
  if (!present.ok()) return present.status();
  if (*present != info.tensor_checksums) {
    return absl::DataLossError(
        "the other holder has other rows under this id: drop it there, and find out which is "
        "right");
  }
  uint64_t bytes_sent = 0;
  absl::Status put =
      target_.Put(info, order_.geometry, order_.tenant, /*rows=*/nullptr, deadline, bytes_sent);
  if (absl::IsAlreadyExists(put)) return true;
  // Dropped since it was queried: the put began and ended without rows, or was aborted.
  if (put.ok() || absl::IsInvalidArgument(put) || absl::IsAborted(put)) return false;
  return put;
}

}  // namespace ckv
