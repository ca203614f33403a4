// The cache of a host: a daemon whose holder keeps rows for all requesters of the host, so they are
// transferred there once.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// Thread-safe.
class HostCache {
 public:
  virtual ~HostCache() = default;
  // Makes the daemon copy these chunks of a corpus, given by their ordinals, and waits until it has
  // all of them. Returns the same corpus, with that daemon as the only holder of these chunks.
  //   Unavailable         the daemon does not answer, or did not a moment ago and was not queried.
  //   ResourceExhausted   it has no room, or the directory lists no more copies of a chunk.
  //   FailedPrecondition  it has no holder, or keeps no copies.
  //   else                as RequesterService.Replicate in proto/ckv/v1/requester.proto.
  virtual absl::StatusOr<std::shared_ptr<const Corpus>> Keep(
      const std::shared_ptr<const Corpus>& corpus, std::span<const uint32_t> chunks,
      Instant deadline) = 0;
};

}  // namespace ckv
