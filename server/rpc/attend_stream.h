// AttendStream: contexts opened once, and attends answered by tag, without a thread a stream.

#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/requester.grpc.pb.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "server/rpc/attend_loop.h"
#include "server/rpc/request_corpora.h"
#include "server/rpc/service_gate.h"
#include "server/rpc/stream_context.h"

namespace ckv {

// Counts attends for people and metrics; orders nothing.
struct AttendCounters {
  std::atomic<uint64_t> attends{0};
  std::atomic<uint64_t> errors{0};

  void Count(const absl::Status& status) {
    attends.fetch_add(1, std::memory_order_relaxed);
    if (!status.ok()) errors.fetch_add(1, std::memory_order_relaxed);
  }
};

// Serves the streams of one requester. Thread-safe.
class AttendStreams {
 public:
  // A stream takes at most AttendStream::kInFlightBytesMax and one message.
  static constexpr uint32_t kStreamCountMax = 256;

  struct Options {
    Clock* clock = Clock::Real();
    Duration default_timeout = std::chrono::seconds(5);
    // How long the loop polls before it sleeps, as in RequesterOptions.
    Duration spin_max = std::chrono::microseconds(50);
    // Whether a trace that begins here is sampled. If it is empty, none is.
    std::function<bool()> sample = {};
  };

  // All must outlive it.
  AttendStreams(const Options& options, Requester* requester, RequestCorpora* corpora,
                ServiceGate* gate, AttendCounters* counters)
      : options_(options),
        requester_(*requester),
        corpora_(*corpora),
        gate_(*gate),
        counters_(*counters),
        loop_(requester, options.clock, options.spin_max) {}

  using Reactor = grpc::ServerBidiReactor<v1::AttendRequest, v1::AttendStreamReply>;
  // Returns the turns of the loop that drives all streams; an idle loop makes one after Wake.
  uint64_t turn_count() const { return loop_.turn_count(); }
  void Wake() { loop_.Wake(); }

  // Returns the reactor of a new stream, which deletes itself.
  Reactor* Accept(grpc::CallbackServerContext* context);

 private:
  friend class AttendStream;
  using ContextPtr = std::shared_ptr<StreamContext>;

  // Whether a context has the chunks that a request names, as they are known now. Does not wait.
  bool IsCurrent(const StreamContext* context, const v1::AttendRequest& request) const;
  // Opens the context that a request names. May wait for the directory and for holders.
  //   As RequestCorpora::ChunksOf and Requester::Open.
  absl::StatusOr<ContextPtr> Open(const v1::AttendRequest& request, Instant deadline);
  // Opens a context again, to find where its chunks are now.
  //   FailedPrecondition  also: its corpus has other chunks by now.
  absl::StatusOr<ContextPtr> Reopen(const StreamContext& context, Instant deadline);

  const Options options_;
  Requester& requester_;
  RequestCorpora& corpora_;
  ServiceGate& gate_;
  AttendCounters& counters_;
  std::atomic<uint64_t> last_number_{0};
  ServiceGate::Kind kind_{"attend streams", kStreamCountMax, /*holds_thread=*/false};
  AttendLoop loop_;
};

}  // namespace ckv
