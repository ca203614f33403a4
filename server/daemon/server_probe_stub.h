// Asks this process' own gRPC server for its health, to see that it answers.

#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ckv {

// Thread-safe. One call at a time; any answer counts, a refusal too: the server has answered.
class ServerProbe {
 public:
  // `address` is where this process reaches its server.
  explicit ServerProbe(const std::string& address);
  // Ends the call in progress.
  ~ServerProbe();
  ServerProbe(const ServerProbe&) = delete;
  ServerProbe& operator=(const ServerProbe&) = delete;

  // Begins a call, unless one is in progress. Does not wait.
  void Ask() ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t answer_count() const { return answer_count_.load(std::memory_order_relaxed); }

 private:
  grpc::GenericStub stub_;
  std::atomic<uint64_t> answer_count_{0};
  absl::Mutex mu_;
  // The call in progress, or null.
  std::unique_ptr<grpc::ClientContext> call_ ABSL_GUARDED_BY(mu_);
  // The buffers of the call in progress, until it has ended.
  grpc::ByteBuffer request_;  // empty, which is a HealthCheckRequest of service ""
  grpc::ByteBuffer reply_;
};

}  // namespace ckv
