#include "client/publish/holder_calls.h"

#include "absl/strings/str_format.h"
#include "client/grpc/grpc_status.h"

namespace ckv {

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
