// Gathers the chunks of a RequesterService.Put, and publishes them at its end.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/requester.pb.h"
#include "client/publish/corpus_writer.h"
#include "client/publish/publisher.h"
#include "proto/base/clock.h"
#include "server/rpc/memory_quota.h"

namespace ckv {

// The most bytes of rows that may wait in this process, of all streams together. The limit of the
// quota that they share.
inline constexpr uint64_t kPutBytesMax = uint64_t{2} << 30;
// The most bytes of rows of one stream.
inline constexpr uint64_t kPutStreamBytesMax = uint64_t{1} << 30;

// One gRPC stream of RequesterService.Put, used by one thread at a time. The publisher, the quota
// and the clock must outlive it. Its bytes go back to the quota when it is destroyed. Nothing is
// published unless Finish succeeds. Errors are those of RequesterService.Put. Its service itself
// limits the number of streams, and refuses them while the requester drains.
class PutStream {
 public:
  PutStream(Publisher* publisher, MemoryQuota* quota, Clock* clock)
      : publisher_(*publisher), quota_(*quota), clock_(*clock) {}
  ~PutStream() { quota_.Give(bytes_); }
  PutStream(const PutStream&) = delete;
  PutStream& operator=(const PutStream&) = delete;

  // Takes the next message: the target first and once, then each chunk and its rows. Copies what it
  // needs. For the target, waits for the directory, for 10 seconds at most. After an error the
  // stream has failed: destroy it.
  absl::Status Take(const v1::PutRequest& message);
  // Sends the chunks to holders and publishes them, within the target's timeout. Call it once, also
  // if it fails.
  //   InvalidArgument     no target or no chunk was taken.
  //   DeadlineExceeded    the timeout has passed. Nothing or all of it may be published.
  absl::StatusOr<v1::PutReply> Finish();

 private:
  absl::Status TakeTarget(const v1::PutTarget& target);
  absl::Status TakeChunk(const v1::PutChunk& chunk);
  absl::Status TakeQuota(uint64_t bytes);

  Publisher& publisher_;
  MemoryQuota& quota_;
  Clock& clock_;
  Duration timeout_{0};
  std::unique_ptr<CorpusWriter> writer_;  // null before the target
  bool has_chunk_ = false;
  uint64_t bytes_ = 0;  // taken from quota_
};

}  // namespace ckv
