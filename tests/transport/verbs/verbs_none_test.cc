// Goal: a build without libibverbs says so.

#include "gtest/gtest.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv {
namespace {

TEST(VerbsNone, ExplainsHowToGetIt) {
  const absl::Status status = CheckVerbs({});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("libibverbs-dev"), absl::string_view::npos) << status;
  EXPECT_EQ(NewVerbsFabric({}, Clock::Real()).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace ckv
