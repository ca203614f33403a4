#include "proto/base/status.h"

#include <string>

#include "absl/strings/str_format.h"

namespace ckv {

NextAct NextActFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return NextAct::kNone;
    case absl::StatusCode::kResourceExhausted:
      return NextAct::kRetryLater;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return NextAct::kReopen;
    case absl::StatusCode::kNotFound:
      return NextAct::kResolveAgain;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kDeadlineExceeded:
      return NextAct::kTryAnother;
    default:
      return NextAct::kGiveUp;
  }
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrFormat("%s: %s", context, std::string(status.message())));
}

int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 2;
    case absl::StatusCode::kNotFound:
      return 3;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return 4;
    case absl::StatusCode::kDeadlineExceeded:
      return 5;
    case absl::StatusCode::kResourceExhausted:
      return 6;
    case absl::StatusCode::kFailedPrecondition:
      return 7;
    case absl::StatusCode::kAlreadyExists:
      return 8;
    case absl::StatusCode::kDataLoss:
      return 9;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return 10;
    default:
      return 1;
  }
}

}  // namespace ckv
