#include "client/publish/holder_calls.h"

#include <grpc/support/time.h>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"

namespace ckv {
namespace {

// Two attempts, and 100 ms between them.
constexpr int kConnectAwaitMs = 300;

}  // namespace

std::unique_ptr<v1::HolderService::StubInterface> ConnectHolder(const Member& member) {
  const auto channel = MakeChannel(member.control_address, kHolderMessageBytesMax);
  // gRPC 1.51 looks at errno some calls after connect(2). So one connect of some thousands fails
  // with an error of something else ("no such file or directory"). The channel tries again after
  // 100 ms.
  channel->WaitForConnected(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                         gpr_time_from_millis(kConnectAwaitMs, GPR_TIMESPAN)));
  return v1::HolderService::NewStub(channel);
}

absl::Status HolderError(const grpc::Status& status, const Member& member, std::string_view call) {
  const std::string context =
      absl::StrFormat("holder %s at %s: %s", member.id.name, member.control_address, call);
  absl::Status plain = FromGrpc(status, context);
  const std::string text(plain.message());
  switch (plain.code()) {
    case absl::StatusCode::kUnimplemented:  // without a text where no such service is served
      return absl::UnimplementedError(absl::StrFormat(
          "%s: not served there: a ckvd of another role, or of another version\n  ckvctl status "
          "shows the members with their roles and addresses",
          context));
    case absl::StatusCode::kUnavailable:
      return absl::UnavailableError(text + "\n  ckvctl status shows which holders are alive");
    default:
      return plain;
  }
}

}  // namespace ckv
