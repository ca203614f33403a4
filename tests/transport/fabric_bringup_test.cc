// Goal: a lane opens for the intended peer, once, in time; any other peer gets a typed error.
// Method: as fabric_conformance_test.cc, whose other half this is.

#include <chrono>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/fabric_cases.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

using test::AllFabrics;
using test::CaseName;
using test::ConnectBeside;
using test::FabricTest;
using test::kSmallShape;
using test::Soon;

class FabricBringUp : public FabricTest {};

TEST_P(FabricBringUp, OneAnswerOpensOneLane) {
  auto first = fabric().Dial(kSmallShape);
  auto second = fabric().Dial(kSmallShape);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto answer = listener_->Invite((*first)->offer(), kSmallShape, "", 1, Soon());
  ASSERT_TRUE(answer.ok()) << answer.status();
  std::vector<AcceptedLane> accepted;
  auto lane = ConnectBeside(**first, *answer, *listener_, &accepted);
  EXPECT_TRUE(lane.ok()) << lane.status();
  auto again = ConnectBeside(**second, *answer, *listener_, &accepted);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kUnavailable) << again.status();
  EXPECT_EQ(accepted.size(), 1u);
}

TEST_P(FabricBringUp, AWrongTokenOpensNothing) {
  auto dialer = fabric().Dial(kSmallShape);
  auto guesser = fabric().Dial(kSmallShape);
  ASSERT_TRUE(dialer.ok() && guesser.ok());
  const auto answer = listener_->Invite((*dialer)->offer(), kSmallShape, "", 1, Soon());
  ASSERT_TRUE(answer.ok());
  std::string guess = *answer;
  guess[31] = static_cast<char>(guess[31] ^ 1);  // the token's last byte
  std::vector<AcceptedLane> accepted;
  auto lane = ConnectBeside(**guesser, guess, *listener_, &accepted);
  EXPECT_EQ(lane.status().code(), absl::StatusCode::kUnavailable) << lane.status();
  EXPECT_TRUE(accepted.empty());
  // The invitation survives the guess.
  lane = ConnectBeside(**dialer, *answer, *listener_, &accepted);
  EXPECT_TRUE(lane.ok()) << lane.status();
}

TEST_P(FabricBringUp, InvitationsExpire) {
  auto dialer = fabric().Dial(kSmallShape);
  ASSERT_TRUE(dialer.ok());
  const auto answer = listener_->Invite((*dialer)->offer(), kSmallShape, "", 1,
                                        clock_.Now() + std::chrono::seconds(5));
  ASSERT_TRUE(answer.ok());
  clock_.Advance(std::chrono::seconds(6));
  std::vector<AcceptedLane> accepted;
  auto lane =
      ConnectBeside(**dialer, *answer, *listener_, &accepted, clock_.Now() + test::kPatience);
  EXPECT_EQ(lane.status().code(), absl::StatusCode::kUnavailable) << lane.status();
  EXPECT_TRUE(accepted.empty());
}

TEST_P(FabricBringUp, InvitationsAreBounded) {
  const LaneShape shape = {1, 64, 64};
  auto dialer = fabric().Dial(shape);
  ASSERT_TRUE(dialer.ok());
  const Instant deadline = clock_.Now() + std::chrono::seconds(60);
  size_t count = 0;
  absl::Status status;
  while (status.ok() && count <= kInvitationCountMax) {
    status = listener_->Invite((*dialer)->offer(), shape, "", count, deadline).status();
    if (status.ok()) ++count;
  }
  // Or the process's descriptors run out first. Neither is a crash, and both are ResourceExhausted.
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_LE(count, kInvitationCountMax);
  clock_.Advance(std::chrono::seconds(61));
  // Expired ones make room; on verbs once another thread has ended their queue pairs, one by one.
  const Instant patience = Clock::Real()->Now() + test::kPatience;
  absl::StatusOr<std::string> answer;
  do {
    (void)listener_->Accept();
    answer = listener_->Invite((*dialer)->offer(), shape, "", count,
                               clock_.Now() + std::chrono::seconds(60));
  } while (absl::IsResourceExhausted(answer.status()) && Clock::Real()->Now() < patience);
  ASSERT_TRUE(answer.ok()) << answer.status();
  std::vector<AcceptedLane> accepted;
  const auto lane =
      ConnectBeside(**dialer, *answer, *listener_, &accepted, clock_.Now() + test::kPatience);
  EXPECT_TRUE(lane.ok()) << lane.status();
  EXPECT_EQ(accepted.size(), 1u);
}

TEST_P(FabricBringUp, MalformedNotesAreRefused) {
  auto dialer = fabric().Dial(kSmallShape);
  ASSERT_TRUE(dialer.ok());
  const std::string offer = (*dialer)->offer();
  EXPECT_LE(offer.size(), kOfferBytesMax);
  const auto invite = [&](std::string_view bytes) {
    return listener_->Invite(bytes, kSmallShape, "", 1, Soon()).status().code();
  };
  EXPECT_EQ(invite(""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(invite(std::string(100'000, 'x')), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(invite(offer.substr(0, 31)), absl::StatusCode::kInvalidArgument);
  const auto answer = listener_->Invite(offer, kSmallShape, "", 1, Soon());
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(invite(*answer), absl::StatusCode::kInvalidArgument);  // an answer is no offer
  for (const std::string& bad : {std::string(), offer, answer->substr(0, 20)}) {
    auto fresh = fabric().Dial(kSmallShape);
    ASSERT_TRUE(fresh.ok());
    EXPECT_EQ((*fresh)->Connect(bad, Soon()).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(FabricBringUp, ShapesAreLimited) {
  const LaneShape bad[] = {{0, 64, 64},
                           {kSlotCountMax + 1, 64, 64},
                           {1, 0, 64},
                           {1, 64, 0},
                           {1, kSlotBytesMax + 1, 64},
                           {1, 64, kSlotBytesMax + 1},
                           {kSlotCountMax, kSlotBytesMax, kSlotBytesMax},
                           {0xffffffff, 0xffffffff, 0xffffffff}};
  auto dialer = fabric().Dial(kSmallShape);
  ASSERT_TRUE(dialer.ok());
  for (const LaneShape& shape : bad) {
    EXPECT_EQ(fabric().Dial(shape).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(listener_->Invite((*dialer)->offer(), shape, "", 1, Soon()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(FabricBringUp, BothEndsMustMeanTheSameShape) {
  auto dialer = fabric().Dial(kSmallShape);
  ASSERT_TRUE(dialer.ok());
  LaneShape other = kSmallShape;
  other.slot_count += 1;
  const auto answer = listener_->Invite((*dialer)->offer(), other, "", 1, Soon());
  ASSERT_TRUE(answer.ok());
  std::vector<AcceptedLane> accepted;
  auto lane = ConnectBeside(**dialer, *answer, *listener_, &accepted);
  EXPECT_EQ(lane.status().code(), absl::StatusCode::kInvalidArgument) << lane.status();
}

TEST_P(FabricBringUp, ListenerGoneIsUnavailable) {
  auto dialer = fabric().Dial(kSmallShape);
  ASSERT_TRUE(dialer.ok());
  const auto answer = listener_->Invite((*dialer)->offer(), kSmallShape, "", 1, Soon());
  ASSERT_TRUE(answer.ok());
  listener_.reset();
  EXPECT_EQ((*dialer)->Connect(*answer, Soon()).status().code(), absl::StatusCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(All, FabricBringUp, AllFabrics(), CaseName);

}  // namespace
}  // namespace ckv
