// Goal: options that cannot work are refused, with the name of the option.

#include "client/requester_options.h"

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(RequesterOptions, AreRefusedWithTheNameOfTheOption) {
  RequesterOptions options;
  EXPECT_TRUE(ValidateRequesterOptions(options).ok());
  options.call_threads = 0;
  EXPECT_NE(ValidateRequesterOptions(options).message().find("call_threads"), std::string::npos);
  options = {};
  options.fabric = FabricKind::kVerbs;
  EXPECT_NE(ValidateRequesterOptions(options).message().find("verbs"), std::string::npos);
  options = {};
  options.clock = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(ValidateRequesterOptions(options)));
}

}  // namespace
}  // namespace ckv
