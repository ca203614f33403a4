// Serves PushChunks. Serve, on the thread of the gRPC call: reads the order; refuses it without a
// lease; PushChunks (server/upkeep) then reads chunks of this holder and puts them on the target
// through PushTargetStub, some at a time; each outcome is written to the caller as it is known.

#include "server/services/chunk_push_service.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "client/publish/chunk_copy.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "proto/convert.h"
#include "server/services/chunk_order.h"
#include "server/services/holder_service.h"
#include "server/upkeep/chunk_push.h"

namespace ckv {
namespace {

constexpr size_t kTargetTextBytesMax = 256;

// Another holder's control plane.
class PushTargetStub final : public PushTarget {
 public:
  PushTargetStub(const std::string& id, const std::string& address, Clock* clock)
      : name_(absl::StrFormat("holder %s at %s", id, address)),
        clock_(*clock),
        stub_(v1::HolderService::NewStub(MakeChannel(address, kHolderMessageBytesMax))) {}

  absl::StatusOr<std::vector<uint64_t>> Query(const ChunkId& id, const Geometry& geometry,
                                              const std::string& tenant,
                                              Instant deadline) override {
    v1::GetChunkInfoRequest request;
    request.set_id(std::string(id.AsBytes()));
    *request.mutable_geometry() = ToProto(geometry);
    request.set_tenant(tenant);
    v1::GetChunkInfoReply reply;
    Call call(this, deadline);
    CKV_RETURN_IF_ERROR(
        FromGrpc(stub_->GetChunkInfo(&call.context, request, &reply), name_ + ": GetChunkInfo"));
    return std::vector<uint64_t>(reply.tensor_checksums().begin(), reply.tensor_checksums().end());
  }

  absl::Status Put(const ChunkInfo& info, const Geometry& geometry, const std::string& tenant,
                   const ChunkRows* rows, Instant deadline, uint64_t& bytes_sent) override {
    v1::PutChunkReply reply;
    Call call(this, deadline);
    const auto writer = stub_->PutChunk(&call.context, &reply);
    absl::Status read;
    if (writer->Write(PutHeader(info, geometry, tenant)) && rows != nullptr)
      read = Write(*writer, *rows, bytes_sent);
    // Rows that could not be read must not look like the end of the rows.
    if (!read.ok()) call.context.TryCancel();
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    return read.ok() ? FromGrpc(status, name_ + ": PutChunk") : read;
  }

  void Cancel() override {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }

 private:
  // A call that Cancel reaches, while it lives.
  struct Call {
    Call(PushTargetStub* stub_in, Instant deadline) : stub(*stub_in) {
      SetDeadline(context, stub.clock_, deadline, kPushPutTimeout);
      absl::MutexLock lock(&stub.mu_);
      stub.contexts_.insert(&context);
      if (stub.cancelled_) context.TryCancel();
    }
    ~Call() {
      absl::MutexLock lock(&stub.mu_);
      stub.contexts_.erase(&context);
    }
    PushTargetStub& stub;
    grpc::ClientContext context;
  };

  // Until the target stops listening, which is how it says that it has them, or why not.
  static absl::Status Write(grpc::ClientWriterInterface<v1::PutChunkRequest>& writer,
                            const ChunkRows& rows, uint64_t& bytes_sent) {
    const uint32_t token_count = rows.info().token_count();
    v1::PutChunkRequest request;
    for (uint32_t t = 0; t < rows.geometry().tensor_count(); ++t) {
      const uint64_t row_bytes = rows.geometry().tensor_row_bytes(t);
      // Whole stripes, so that none is read twice from a file.
      uint32_t step =
          std::max<uint32_t>(1, static_cast<uint32_t>(kMessageRowsBytesMax / row_bytes));
      if (step > kStripeTokens) step -= step % kStripeTokens;
      for (uint32_t begin = 0; begin < token_count; begin += step) {
        const uint32_t count = std::min(step, token_count - begin);
        v1::PutChunkRequest::Rows& message = *request.mutable_rows();
        message.set_tensor(t);
        message.set_offset_bytes(begin * row_bytes);
        std::string& bytes = *message.mutable_rows();
        bytes.resize(count * row_bytes);
        CKV_RETURN_IF_ERROR(rows.Read(
            t, begin, count, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
        if (!writer.Write(request)) return absl::OkStatus();
        bytes_sent += bytes.size();
      }
    }
    return absl::OkStatus();
  }

  const std::string name_;
  Clock& clock_;
  const std::unique_ptr<v1::HolderService::StubInterface> stub_;
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<PushOrder> PushOrderFrom(const v1::PushChunksRequest& request) {
  if (request.to_id().size() > kTargetTextBytesMax || request.to_address().empty() ||
      request.to_address().size() > kTargetTextBytesMax) {
    return absl::InvalidArgumentError("push: no address, or a name that is too long");
  }
  CKV_ASSIGN_OR_RETURN(ChunkOrder order,
                       ChunkOrderFrom("push", request.ids(), request.geometry(), request.tenant()));
  return PushOrder{std::move(order.ids), order.geometry, std::move(order.tenant)};
}

}  // namespace

grpc::Status ChunkPushService::Push(grpc::ServerContext* context,
                                    const v1::PushChunksRequest* request,
                                    grpc::ServerWriter<v1::PushChunksReply>* writer) {
  auto stream = gate_.Enter(EndCall(context), &orders_);
  if (!stream.ok()) return ToGrpc(stream.status());
  return ToGrpc(Serve(*context, *stream, *request, *writer));
}

absl::Status ChunkPushService::Serve(grpc::ServerContext& context, ServiceGate::Stream& stream,
                                     const v1::PushChunksRequest& request,
                                     grpc::ServerWriter<v1::PushChunksReply>& writer) {
  CKV_ASSIGN_OR_RETURN(PushOrder order, PushOrderFrom(request));
  if (!holder_.lease().LiveAt(clock_.Now()))
    return absl::UnavailableError("this holder has no live lease");
  order.deadline = DeadlineOf(context, clock_, kPushOrderTimeoutMax);
  const Instant deadline = order.deadline;
  PushTargetStub target(request.to_id(), request.to_address(), &clock_);
  ChunkPush push(&holder_.store(), &target, &clock_, std::move(order));
  const auto report = [&](const PushedChunk& chunk) {
    v1::PushChunksReply reply;
    reply.set_id(std::string(chunk.id.AsBytes()));
    reply.set_reused(chunk.reused);
    reply.set_bytes_sent(chunk.bytes_sent);
    // A peer that does not read would hold the thread, and the puts behind it.
    if (!stream.BeginWait(deadline)) return false;
    const bool written = writer.Write(reply);
    stream.EndWait();
    return written;
  };
  absl::Status status = push.Run(report, [&] { return context.IsCancelled() || gate_.closed(); });
  if (absl::IsCancelled(status) && gate_.closed()) return ServiceGate::ClosedError();
  return status;
}

}  // namespace ckv
