// Goal: what a server leaves behind that ends in the middle of a call is Unavailable, which another
// try cures. Other codes stay as they are.

#include "client/grpc/grpc_status.h"

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(FromPeer, AServerThatEndsIsUnavailable) {
  using grpc::StatusCode;
  for (const grpc::Status& status :
       {grpc::Status(StatusCode::CANCELLED, "CANCELLED"),
        {StatusCode::UNKNOWN, "Stream removed"},
        {StatusCode::INTERNAL, "Received RST_STREAM with error code 2"},
        {StatusCode::UNAVAILABLE, "Socket closed"}}) {
    const absl::Status reported = FromPeer(status, "holder h0");
    EXPECT_EQ(reported.code(), absl::StatusCode::kUnavailable) << reported;
    EXPECT_EQ(reported.message(), "holder h0: " + status.error_message());
  }
  EXPECT_TRUE(FromPeer(grpc::Status::OK, "holder h0").ok());
  for (int code = 1; code <= 16; ++code) {
    if (code == StatusCode::CANCELLED || code == StatusCode::UNKNOWN) continue;
    const grpc::Status status(static_cast<StatusCode>(code), "x");
    EXPECT_EQ(FromPeer(status, "h").code(), static_cast<absl::StatusCode>(code));
  }
}

}  // namespace
}  // namespace ckv
