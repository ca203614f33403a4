// Goal: every kind of call handles lanes the same way: a reply that is not the one awaited is
// counted and never used (I1), and a silent holder is avoided.
// Method: a holder that answers as a test sets, over a fabric that reports itself as shm, so that
// all three kinds of call can be made.

#include "client/call/exchange.h"

#include <cstring>

#include "gtest/gtest.h"
#include "tests/support/fake_holder.h"
#include "tests/support/scripted_fabric.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::FakeHolder;
using test::MakeTestCorpus;
using test::ScriptedFabric;
using test::ShiftedClock;
using test::SmallShape;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

enum class Kind { kAttend, kFetch, kMap };

// One chunk, on h0 and h1: the same process under two names.
struct ExchangeTest : testing::TestWithParam<Kind> {
  ExchangeTest() {
    RequesterOptions options;
    options.fabrics = {&fabric};
    options.lane_shape = SmallShape();
    requester = *Requester::Create(options, &holder, &holder);
    published = *requester->Resolve("c", "", Soon());
  }
  // How the holder treats a request.
  void Serve(const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
    if (silent) return;
    const std::span<std::byte> reply = lane.reply(arrival.slot);
    const absl::Status refusal = absl::UnimplementedError("not here");
    uint32_t bytes = EncodeErrorReply(header, refusal, /*retry_after_us=*/0, reply);
    if (damage_count > 0) {
      --damage_count;
      reply[damaged_at] ^= std::byte{1};
    }
    lane.Post(arrival.slot, bytes).IgnoreError();
  }
  absl::Status Choose(Duration time) {
    const Instant deadline = Soon(time);
    if (GetParam() == Kind::kMap) return requester->Map({published, 0, deadline}).status();
    if (GetParam() == Kind::kFetch) {
      FetchCall call;
      call.corpus = published;
      call.chunk_end = 1;
      call.tensor_end = published->geometry.layers;
      call.deadline = deadline;
      return requester->Fetch(call, [](const FetchedRows&) { return absl::OkStatus(); });
    }
    AttendCall call;
    call.corpus = published;
    call.q = {q.data(), 4, 96};
    call.deadline = deadline;
    Answer answer(4, 64);
    return requester->Attend(call, answer.View(), /*report=*/nullptr);
  }
  uint32_t LanesTo(size_t i) const { return requester->KnownHolders().at(i).lane_count; }

  ShiftedClock clock;
  ScriptedFabric fabric{FabricKind::kShm, &clock};
  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5}, 1);
  std::vector<uint16_t> q = std::vector<uint16_t>(4 * 96);
  std::atomic<bool> silent{false};
  std::atomic<uint32_t> damage_count{0};  // how many of the next replies are damaged
  std::atomic<size_t> damaged_at{0};      // the byte of them
  FakeHolder holder{&fabric, corpus.Publish("c", "", {{TestFleet::Name(0), TestFleet::Name(1)}}),
                    [this](const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
                      Serve(header, lane, arrival);
                    }};
  std::unique_ptr<Requester> requester;
  std::shared_ptr<const Corpus> published;
};
INSTANTIATE_TEST_SUITE_P(, ExchangeTest, testing::Values(Kind::kAttend, Kind::kFetch, Kind::kMap),
                         [](const auto& test) {
                           return test.param == Kind::kAttend  ? "attend"
                                  : test.param == Kind::kFetch ? "fetch"
                                                               : "map";
                         });

TEST_P(ExchangeTest, AfterADamagedReplyTheCallGetsAnotherLane) {
  damage_count = 1;
  EXPECT_EQ(Choose(std::chrono::seconds(20)).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(requester->Stats().discarded_reply_count, 1u);
}

// Each byte of the header counts, the version among them.
TEST_P(ExchangeTest, ADamagedReplyIsNoErrorOfTheCall) {
  for (size_t at = 0; at < sizeof(ReplyHeader); at += 3) {
    damaged_at = at;
    damage_count = 1;
    EXPECT_EQ(Choose(std::chrono::seconds(20)).code(), absl::StatusCode::kUnimplemented) << at;
  }
}

// One more try at each of the two holders, however long the call may take.
TEST_P(ExchangeTest, AHolderThatDamagesEachReplyIsTriedTwice) {
  damage_count = UINT32_MAX;
  const absl::Status status = Choose(std::chrono::seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_NE(status.message().find("a damaged answer: reply: "), std::string::npos) << status;
  EXPECT_LE(UINT32_MAX - damage_count, 4u);
  EXPECT_EQ(LanesTo(0), 0u);  // that lane to it is not used again
  damage_count = 0;
  EXPECT_EQ(Choose(std::chrono::seconds(20)).code(), absl::StatusCode::kUnimplemented);
  for (const HolderView& view : requester->Holders()) EXPECT_EQ(view.in_flight, 0u);
}

TEST_P(ExchangeTest, ASilentHolderIsAvoided) {
  silent = true;
  // Long enough to open a lane under a sanitizer, which takes 50 ms.
  const absl::Status status = Choose(std::chrono::seconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.ToString().find("holder h0"), std::string::npos) << status;
  EXPECT_EQ(LanesTo(1), 1u);  // the other was tried after half of the time
  silent = false;
  EXPECT_EQ(Choose(std::chrono::seconds(20)).code(), absl::StatusCode::kUnimplemented);
  for (const HolderView& view : requester->Holders()) EXPECT_EQ(view.in_flight, 0u);
}

// A context keeps nothing of an earlier call's answer.
TEST(RouterReport, ApproximateIsOfThisCallAlone) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  const auto corpus = MakeTestCorpus(TestGeometry(), {5}, 1);
  FakeHolder* it = nullptr;
  FakeHolder holder(fabric.get(), corpus.Publish("c", "", {{TestFleet::Name(0)}}),
                    [&it](const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
                      it->AnswerZeros(header, lane, arrival.slot);
                    });
  it = &holder;
  RequesterOptions options;
  options.fabrics = {fabric.get()};
  options.lane_shape = SmallShape();
  const auto requester = *Requester::Create(options, &holder, &holder);
  const std::vector<uint16_t> q(4 * 96);
  AttendCall call;
  call.corpus = *requester->Resolve("c", "", Soon());
  call.q = {q.data(), 4, 96};
  for (const bool allow : {true, false}) {
    call.allow_approximate = allow;
    call.deadline = Soon();
    Answer answer(4, 64);
    AttendReport report;
    const absl::Status status = requester->Attend(call, answer.View(), &report);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(report.approximate, allow);
  }
}

}  // namespace
}  // namespace ckv
