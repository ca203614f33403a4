// RequesterService.Put: reads the stream; server/rpc/put_stream.h does the rest.

#include <algorithm>

#include "client/grpc/grpc_status.h"
#include "server/rpc/put_stream.h"
#include "server/rpc/server_limits.h"
#include "server/services/requester_service.h"

namespace ckv {
namespace {

// The longest wait for the next message, so that a caller that stalls does not keep a thread.
constexpr Duration kPutStreamProgressMax = std::chrono::seconds(30);
// The longest stream, whose rows take room from others: 1 GiB at 2 MB/s.
constexpr Duration kPutStreamMax = std::chrono::minutes(10);

}  // namespace

grpc::Status RequesterServiceImpl::Put(grpc::ServerContext* context,
                                       grpc::ServerReader<v1::PutRequest>* reader,
                                       v1::PutReply* reply) {
  auto stream = gate_.Enter(EndCall(context), &puts_);
  if (!stream.ok()) return ToGrpc(stream.status());
  Publisher publisher(options_.directory_address(), options_.clock);
  PutStream put(&publisher, &put_budget_, options_.clock);
  v1::PutRequest message;
  const Instant end = options_.clock->Now() + kPutStreamMax;
  while (true) {
    if (!stream->BeginWait(std::min(end, options_.clock->Now() + kPutStreamProgressMax))) break;
    const bool read = reader->Read(&message);
    stream->EndWait();
    if (!read) break;
    if (const absl::Status status = put.Take(message); !status.ok()) return ToGrpc(status);
  }
  // A stream that broke reads like one that ended.
  if (gate_.closed()) return ToGrpc(ServiceGate::ClosedError());
  if (context->IsCancelled()) {
    return ToGrpc(absl::CancelledError("put: interrupted; nothing was published"));
  }
  auto done = put.Finish();
  if (!done.ok()) return ToGrpc(done.status());
  *reply = *std::move(done);
  return grpc::Status::OK;
}

}  // namespace ckv
