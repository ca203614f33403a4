// Queries the health of a gRPC server, to check that it answers.

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

// One thread calls Send; one call is in progress at a time. Any thread may read the count. Every
// answer counts, even an error.
class ServerProbe {
 public:
  // kKept is for the server of this process: the probe then needs no new descriptor. kNew also
  // detects a server that refuses new connections but still serves the open ones.
  enum class Connection { kKept, kNew };
  // `address` is where this process reaches the server.
  ServerProbe(std::string address, Connection connection);
  // Ends the call in progress.
  ~ServerProbe();
  ServerProbe(const ServerProbe&) = delete;
  ServerProbe& operator=(const ServerProbe&) = delete;

  // Starts a call, unless one is in progress. Does not wait.
  void Send() ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t answer_count() const { return answer_count_.load(std::memory_order_relaxed); }

 private:
  const std::string address_;
  const Connection connection_;
  // The stub of the last call. Only the thread that calls Send uses it.
  std::unique_ptr<grpc::GenericStub> stub_;
  std::atomic<uint64_t> answer_count_{0};
  absl::Mutex mu_;
  // The call in progress, or null.
  std::unique_ptr<grpc::ClientContext> call_ ABSL_GUARDED_BY(mu_);
  // The buffers of the call in progress, in use until it has ended.
  grpc::ByteBuffer request_;  // empty, which is a HealthCheckRequest of service ""
  grpc::ByteBuffer reply_;
};

}  // namespace ckv
