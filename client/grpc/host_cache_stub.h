// A stub for this host's cache over gRPC: a ckvd of --role=holder,requester.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "ckv/v1/requester.grpc.pb.h"
#include "client/holders/host_cache.h"
#include "proto/base/clock.h"

namespace ckv {

// Thread-safe. Every error message names the daemon's address.
class HostCacheStub final : public HostCache {
 public:
  // The longest time that one call waits for copies.
  static constexpr Duration kCopyMax = std::chrono::minutes(2);
  // After a daemon did not answer, calls fail at once for this time.
  static constexpr Duration kSilentFor = std::chrono::seconds(2);

  // Does not use the network.
  HostCacheStub(std::string address, Clock* clock);

  absl::StatusOr<std::shared_ptr<const Corpus>> Keep(const std::shared_ptr<const Corpus>& corpus,
                                                     std::span<const uint32_t> chunks,
                                                     Instant deadline) override;

 private:
  // Returns the name of the daemon's holder.
  absl::StatusOr<std::string> Request(const v1::ReplicateRequest& request, Instant deadline);

  const std::string address_;
  Clock* const clock_;
  const std::unique_ptr<v1::RequesterService::StubInterface> stub_;
  std::atomic<int64_t> silent_since_ns_;
};

}  // namespace ckv
