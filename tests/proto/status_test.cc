#include "proto/base/status.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ckv {
namespace {

constexpr int kCodeCount = 17;  // absl's codes are 0 to 16

TEST(NextActFor, FollowsFromTheCodeAlone) {
  using Code = absl::StatusCode;
  const std::map<Code, NextAct> acts = {{Code::kOk, NextAct::kNone},
                                        {Code::kResourceExhausted, NextAct::kRetryLater},
                                        {Code::kUnavailable, NextAct::kReopen},
                                        {Code::kAborted, NextAct::kReopen},
                                        {Code::kNotFound, NextAct::kResolveAgain},
                                        {Code::kDataLoss, NextAct::kTryAnother},
                                        {Code::kFailedPrecondition, NextAct::kTryAnother},
                                        {Code::kDeadlineExceeded, NextAct::kTryAnother}};
  for (int code = 0; code < kCodeCount; ++code) {
    const auto act = acts.find(static_cast<Code>(code));
    EXPECT_EQ(NextActFor(absl::Status(static_cast<Code>(code), "x")),
              act == acts.end() ? NextAct::kGiveUp : act->second)
        << code;
  }
}

TEST(ExitCodeFor, IsStable) {
  // By the number of the code: OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, ...
  const int expected[kCodeCount] = {0, 1, 1, 2, 5, 3, 8, 10, 6, 7, 4, 2, 1, 1, 4, 9, 10};
  for (int code = 0; code < kCodeCount; ++code) {
    EXPECT_EQ(ExitCodeFor(absl::Status(static_cast<absl::StatusCode>(code), "x")), expected[code])
        << code;
  }
}

TEST(Annotate, KeepsTheCodeAndPutsTheContextFirst) {
  const absl::Status status = Annotate(absl::NotFoundError("no row"), "chunk 3");
  EXPECT_EQ(status, absl::NotFoundError("chunk 3: no row"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "chunk 3").ok());
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  CKV_ASSIGN_OR_RETURN(const int half, Half(value));
  CKV_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

absl::Status CheckEven(int value) {
  CKV_RETURN_IF_ERROR(Half(value).status());
  return absl::OkStatus();
}

TEST(StatusMacros, ReturnTheFirstErrorOrContinue) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status(), absl::InvalidArgumentError("odd"));
  EXPECT_EQ(CheckEven(3), absl::InvalidArgumentError("odd"));
  EXPECT_TRUE(CheckEven(4).ok());
}

TEST(CheckDeathTest, PrintsTheConditionAndEnds) {
  CKV_CHECK(1 + 1 == 2);
  EXPECT_DEATH(CKV_CHECK(1 + 1 == 3), "status_test.cc:[0-9]+: CKV_CHECK failed: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace ckv
