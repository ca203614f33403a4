#include "server/daemon/server_probe_stub.h"

#include <utility>

#include "client/grpc/channel_stub.h"

namespace ckv {
namespace {

grpc::ByteBuffer NoBytes() {
  const grpc::Slice nothing;
  return {&nothing, 1};
}

}  // namespace

ServerProbe::ServerProbe(std::string address, Connection connection)
    : address_(std::move(address)), connection_(connection), request_(NoBytes()) {}

ServerProbe::~ServerProbe() {
  absl::MutexLock lock(&mu_);
  if (call_ != nullptr) call_->TryCancel();
  mu_.Await(absl::Condition(
      +[](std::unique_ptr<grpc::ClientContext>* call) { return *call == nullptr; }, &call_));
}

void ServerProbe::Send() {
  grpc::ClientContext* call = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (call_ != nullptr) return;
    if (stub_ == nullptr || connection_ == Connection::kNew) {
      stub_ = std::make_unique<grpc::GenericStub>(MakeOwnChannel(address_));
    }
    call_ = std::make_unique<grpc::ClientContext>();
    call = call_.get();
  }
  // Until the call has ended, this and the buffers are its own.
  const auto done = [this](const grpc::Status& status) {
    // A server that cannot be reached gives no answer.
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
      answer_count_.fetch_add(1, std::memory_order_relaxed);
    }
    absl::MutexLock lock(&mu_);
    call_.reset();
  };
  stub_->UnaryCall(call, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request_, &reply_,
                   done);
}

}  // namespace ckv
