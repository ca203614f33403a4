#include "client/tools/ctl/await_serving.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "client/grpc/grpc_status.h"

namespace ckv::ctl {
namespace {

// Debian installs no generated code for grpc.health.v1, so its two messages are written out: a
// request is its field 1, the service's name; a response its field 1, of which 1 is SERVING.
constexpr char kWatchMethod[] = "/grpc.health.v1.Health/Watch";
constexpr std::string_view kServing("\x08\x01", 2);

grpc::ByteBuffer RequestOf(const std::string& service) {
  const grpc::Slice slice("\x0a" + std::string(1, static_cast<char>(service.size())) + service);
  return {&slice, 1};
}

bool SaysServing(const grpc::ByteBuffer& response) {
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return false;
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes == kServing;
}

// Between two tries at a server that itself answers UNAVAILABLE, as a proxy without a backend does.
constexpr Duration kRetrySame = std::chrono::milliseconds(100);

// One stream of health. OK: it serves; else why the stream ended.
grpc::Status WatchOnce(grpc::GenericStub& stub, const std::string& service, const Clock& clock,
                       Instant deadline) {
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  SetDeadline(context, clock, deadline, deadline - clock.Now());
  context.set_wait_for_ready(true);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto stream = stub.PrepareCall(&context, kWatchMethod, &queue);
  stream->StartCall(nullptr);
  bool open = done();
  if (open) {
    stream->WriteLast(RequestOf(service), grpc::WriteOptions(), nullptr);
    open = done();
  }
  bool serving = false;
  while (open && !serving) {
    grpc::ByteBuffer response;
    stream->Read(&response, nullptr);
    open = done();
    serving = open && SaysServing(response);
  }
  if (serving) context.TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  done();
  return serving ? grpc::Status::OK : status;
}

}  // namespace

void AwaitServing(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                  Clock& clock, Instant deadline) {
  grpc::GenericStub stub(channel);
  // A connection that breaks, as that of a ckvd that is restarted, is waited for again. Any other
  // end of the stream is an answer: the call that follows says what is wrong.
  while (clock.Now() < deadline &&
         WatchOnce(stub, service, clock, deadline).error_code() == grpc::StatusCode::UNAVAILABLE) {
    clock.WaitUntil(std::min(deadline, clock.Now() + kRetrySame));
  }
}

}  // namespace ckv::ctl
