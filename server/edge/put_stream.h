// Gathers the chunks of a RequesterService.Put, and publishes them at its end.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/requester.pb.h"
#include "client/publish/corpus_writer.h"
#include "client/publish/publisher.h"
#include "proto/base/clock.h"

namespace ckv {

// Bytes of rows that wait in this process. Thread-safe.
class PutRoom {
 public:
  static constexpr uint64_t kBytesMax = uint64_t{2} << 30;
  static constexpr uint64_t kStreamBytesMax = uint64_t{1} << 30;

  // Takes `bytes`, and returns whether there was room.
  bool Take(uint64_t bytes);
  void Give(uint64_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> taken_{0};
};

// One stream. One thread at a time. The publisher and the room must outlive it. Errors are those of
// RequesterService.Put.
class PutStream {
 public:
  PutStream(Publisher* publisher, PutRoom* room, Clock* clock)
      : publisher_(*publisher), room_(*room), clock_(*clock) {}
  ~PutStream() { room_.Give(bytes_); }
  PutStream(const PutStream&) = delete;
  PutStream& operator=(const PutStream&) = delete;

  // Takes the next message. After an error the stream has failed.
  absl::Status Take(const v1::PutRequest& message);
  // Puts and publishes the chunks.
  absl::StatusOr<v1::PutReply> Finish();

 private:
  absl::Status TakeTarget(const v1::PutTarget& target);
  absl::Status TakeChunk(const v1::PutChunk& chunk);
  absl::Status TakeRoom(uint64_t bytes);

  Publisher& publisher_;
  PutRoom& room_;
  Clock& clock_;
  Duration timeout_{0};
  std::unique_ptr<CorpusWriter> writer_;  // null before the target
  bool has_chunk_ = false;
  uint64_t bytes_ = 0;  // taken from room_
};

}  // namespace ckv
