// Goal: calls over a backend that works asynchronously count its time as the device's, never block
// a caller that polls, and survive a stream that fails.
// Method: a requester over a backend that works only when it is waited for or triggered. Holders
// compute on this processor. A clock advances while the device works.

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client/call/call_context_pool.h"
#include "client/call/ticket_wait.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/client/call/requester_stream_fixture.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::Answer;
using test::DeferredBackend;
using test::RandomBf16;
using test::RequesterStreamTest;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;

// The deadline is checked again once the queries have arrived from the device. After the deadline,
// no holder is queried.
TEST_F(RequesterStreamTest, TheDeadlineIsLookedAtAfterTheQueriesAreWritten) {
  const auto requester = Start(Options());
  const Context context = Open(*requester);
  const Segment segment = {.row_count = kRows, .context = &context};
  const LayerCall call = Call(segment);
  Answer answer(kRows, kAnswerValues);
  const uint64_t before = RequestCount();
  device_.OnBlockingWait([&] { clock_.Advance(2 * test::kPatience); });
  EXPECT_EQ(requester->Attend(call, answer.View()).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(RequestCount(), before) << "nobody waits for an answer";
  EXPECT_TRUE(answer.Untouched());
  // The slots are free again, and no holder is doubted for the device's time.
  device_.OnBlockingWait(nullptr);
  for (int i = 0; i < 20; ++i) {
    const absl::Status status = requester->Attend(Call(segment), answer.View());
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(requester->Stats().failover_count, 0u);
}

// The device's time does not count as a lane's either. One wait covers the queries of all holders.
TEST_F(RequesterStreamTest, TheTimeOnALaneIsWithoutTheDevices) {
  const auto requester = Start(Options());
  const Context context = Open(*requester);
  const Segment segment = {.row_count = kRows, .context = &context};
  Answer answer(kRows, kAnswerValues);
  const uint64_t waits = device_.blocking_wait_count();
  device_.OnBlockingWait([&] { clock_.Advance(std::chrono::seconds(5)); });
  AttendReport report;
  const absl::Status status = requester->Attend(Call(segment), answer.View(), &report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(report.holder_count, 2u);
  EXPECT_EQ(device_.blocking_wait_count() - waits, 2u) << "for queries, and for the answer";
  EXPECT_GE(report.elapsed, std::chrono::seconds(10));
  const LatencyCounts lanes =
      requester->Stats().latency.lanes[static_cast<size_t>(FabricKind::kLoopback)];
  EXPECT_EQ(lanes.total(), 2u);
  EXPECT_LT(lanes.Quantile(1), std::chrono::seconds(5));
}

// On the failed stream, the next call would fail, too.
TEST_F(RequesterStreamTest, ACallAfterAFailedOneHasAnotherStream) {
  const auto requester = Start(Options());
  const Context context = Open(*requester);
  const Segment segment = {.row_count = kRows, .context = &context};
  Answer answer(kRows, kAnswerValues);
  for (const auto failure :
       {DeferredBackend::Failure::kAtCall, DeferredBackend::Failure::kAtWait}) {
    device_.Fail(failure);
    EXPECT_EQ(requester->Attend(Call(segment), answer.View()).code(), StatusCode::kInternal);
    absl::Status status = requester->Attend(Call(segment), answer.View());
    EXPECT_TRUE(status.ok()) << status;
    device_.Fail(failure);
    auto ticket = requester->Submit(Call(segment), answer.View());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_EQ(ticket->Wait().code(), StatusCode::kInternal);
    status = requester->Attend(Call(segment), answer.View());
    EXPECT_TRUE(status.ok()) << status;
  }
}

// Once with slots for all blocks, and once with so few that blocks are merged one by one.
TEST_F(RequesterStreamTest, APollingCallNeverWaitsForTheDevice) {
  for (const LaneShape& shape : {LaneShape{.slot_count = 8}, SmallShape(2)}) {
    RequesterOptions options = Options();
    options.lane_shape = shape;
    const auto requester = Start(options);
    options.backend = Backend::Cpu();
    const auto cpu = Start(options);
    const auto own = RandomBf16(size_t{7} * kQueryValues, rng_);
    OwnRows own_rows;
    own_rows.rows = {reinterpret_cast<const std::byte*>(own.data()), 7, kQueryValues * 2};
    const auto segment_of = [&](const Context& context) {
      return Segment{.row_count = kRows, .context = &context, .own = {&own_rows, 1}};
    };
    const Context context = Open(*requester), cpu_context = Open(*cpu);
    const Segment segment = segment_of(context), cpu_segment = segment_of(cpu_context);
    Answer want(kRows, kAnswerValues), got(kRows, kAnswerValues);
    ASSERT_TRUE(cpu->Attend(Call(cpu_segment), want.View()).ok());

    const uint64_t waits = device_.blocking_wait_count(), requests = RequestCount();
    const uint64_t attends = device_.attend_count();
    auto ticket = requester->Submit(Call(segment), got.View());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    TicketWait rest(Clock::Real(), Duration(0));
    for (int i = 0; i < 10; ++i) {
      EXPECT_FALSE(ticket->Poll());
      EXPECT_EQ(ticket->TryPoll(), TicketProgress::kInFlight);
      const Ticket* const one = &*ticket;
      rest.Rest({&one, 1}, /*wake_fd=*/-1);
    }
    EXPECT_EQ(RequestCount(), requests) << "the queries are not written yet";
    EXPECT_EQ(device_.attend_count(), attends) << "own rows do not delay them";
    EXPECT_TRUE(Await([&] {
      device_.DoAll();
      return ticket->Poll();
    }));
    EXPECT_EQ(device_.blocking_wait_count(), waits);
    EXPECT_TRUE(ticket->Wait().ok()) << ticket->Wait();
    EXPECT_TRUE(got.SameBits(want));
  }
}

// The answer is not visible before it is merged.
TEST_F(RequesterStreamTest, APolledCallEndsWithItsMerges) {
  const auto requester = Start(Options());
  const Context context = Open(*requester);
  const Segment segment = {.row_count = kRows, .context = &context};
  Answer answer(kRows, kAnswerValues);
  auto ticket = requester->Submit(Call(segment), answer.View());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  device_.DoAll();
  ASSERT_TRUE(Await([&] {
    EXPECT_FALSE(ticket->Poll());
    return device_.merge_count() > 0;
  }));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(ticket->Poll());
  EXPECT_TRUE(answer.Untouched());
  EXPECT_EQ(device_.merge_count(), 1u) << "once";
  device_.DoAll();
  EXPECT_TRUE(ticket->Poll());
  EXPECT_FALSE(answer.Untouched());
  EXPECT_EQ(device_.blocking_wait_count(), 0u);
}

// A call that is given up drops frames that are written but not posted, and their slots are free.
TEST_F(RequesterStreamTest, ACallIsGivenUpBeforeItsQueriesLeave) {
  RequesterOptions options = Options();
  options.lane_shape = SmallShape(2);
  const auto requester = Start(options);
  const Context context = Open(*requester);
  const Segment segment = {.row_count = kRows, .context = &context};
  Answer answer(kRows, kAnswerValues);
  const uint64_t before = RequestCount();
  for (int i = 0; i < 10; ++i) {
    auto ticket = requester->Submit(Call(segment), answer.View());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_FALSE(ticket->Poll());
    if (i % 2 == 0) {
      ticket->Cancel();
    } else {
      clock_.Advance(2 * test::kPatience);
      EXPECT_TRUE(ticket->Poll());
      EXPECT_EQ(ticket->Wait().code(), StatusCode::kDeadlineExceeded) << ticket->Wait();
    }
  }
  EXPECT_EQ(RequestCount(), before);
  const absl::Status status = requester->Attend(Call(segment), answer.View());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(requester->Stats().failover_count, 0u);
}

// Every kind of call checks the answer's memory before it sends anything.
TEST_F(RequesterStreamTest, AnAnswersMemoryIsCheckedFirst) {
  RequesterOptions options = Options();
  options.backend = Backend::Cpu();
  const auto requester = Start(options);
  const Context context = Open(*requester);
  const Segment segment = {.row_count = kRows, .context = &context};
  Answer answer(kRows, kAnswerValues);
  PartialView out = answer.View();
  out.memory = MemoryKind::kDevice;
  const uint64_t before = RequestCount();
  const auto refused = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_NE(std::string(status.message()).find("answer"), std::string::npos) << status;
    EXPECT_EQ(RequestCount(), before);
  };
  refused(requester->Attend(Call(segment), out));
  refused(requester->Submit(Call(segment), out).status());
  refused(requester->TrySubmit(Call(segment), out).status());
  AttendCall call;
  call.corpus = *requester->Resolve("c", "", Soon());
  call.q = {q_.data(), kRows, kQueryValues};
  call.deadline = Soon();
  refused(requester->Attend(call, out, nullptr));
  bool requested = false;
  const auto buffers = [&] {
    requested = true;
    return out;
  };
  refused(requester->Attend(call, buffers, nullptr, MemoryKind::kDevice));
  EXPECT_FALSE(requested);
  // An output buffer of another memory kind than announced is refused when it is made.
  const absl::Status status = requester->Attend(call, buffers, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(requested && answer.Untouched());
}

struct RowsHere final : LocalRows {
  std::vector<std::vector<uint16_t>> layers;
  std::span<const std::byte> tensor(uint32_t l) const override {
    return std::as_bytes(std::span(layers[l]));
  }
};

// Calls over chunks that are all in the local row cache.
class AttendHereTest : public RequesterStreamTest {
 protected:
  AttendHereTest() {
    options_.requester = "r";
    options_.clock = &clock_;
    options_.fabrics = {fabric_.get()};
    options_.backend = &device_;
    const ContextPart part = {
        std::make_shared<const Corpus>(corpus_.Publish("c", "", {{test::TestFleet::Name(0)}})), {}};
    context_ = *ContextState::Make({&part, 1});
    for (const auto& chunk : corpus_.chunks) {
      auto rows = std::make_shared<RowsHere>();
      rows->layers = chunk.layers;
      cached_.push_back(std::move(rows));
    }
  }
  // Makes the calls that learn into `live`, until the next NewCalls.
  void NewCalls(LiveHere& live) {
    options_.here = &live;
    calls_ = *CallContext::Make(&options_, &peers_, Duration(0), &counters_);
    calls_->links.Claim();
  }
  RouteSegment Rows(uint32_t begin, uint32_t count) {
    return {.row_begin = begin, .row_count = count, .context = context_.get(), .cached = &cached_};
  }
  Answer Attend(const QueryView& q, std::span<const RouteSegment> segments) {
    const RouteCall call = {.q = q, .segments = segments, .deadline = kInstantMax};
    Answer answer(kRows, kAnswerValues);
    calls_->links.BeginCall();
    const absl::Status status = calls_->router.Attend(
        call, [&] { return answer.View(); }, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    return answer;
  }

  DirectoryView view_{&fleet_};
  PeerTable peers_{&view_, &fleet_};
  CallCounters counters_;
  LinkOptions options_;
  std::shared_ptr<ContextState> context_;
  LocalRowTable cached_;
  std::unique_ptr<CallContext> calls_;
};

// The kernel does not look slow because an engine's stream is still computing the queries.
TEST_F(AttendHereTest, TheProducersTimeIsNotLearned) {
  const RowWidths widths = TestGeometry().widths();
  RequesterConstants constants;
  constants.attend_per_row_token_us = 10;  // far more than it takes
  DeferredBackend other;
  std::vector<uint16_t> made(q_.size());
  const std::unique_ptr<ComputeStream> here = *device_.NewStream(1), there = *other.NewStream(1);
  Answer want(kRows, kAnswerValues);
  // A call waits for the other backend's stream before it begins, so the kernel's own time is seen.
  other.OnBlockingWait([&] { clock_.Advance(std::chrono::seconds(10)); });
  for (ComputeStream* const producer : {(ComputeStream*)nullptr, here.get(), there.get()}) {
    LiveHere live;
    live.SetKnown(widths, constants);
    NewCalls(live);
    for (int i = 0; i < 100; ++i) {
      QueryView q = {q_.data(), kRows, kQueryValues};
      if (producer != nullptr) {
        made.assign(made.size(), 0);
        MakeOn(*producer, q_, made);
        q.data = made.data();
        q.after = producer;
      }
      const RouteSegment segment = Rows(0, kRows);
      const Answer answer = Attend(q, {&segment, 1});
      if (want.Untouched()) want = answer;
      EXPECT_TRUE(answer.SameBits(want) && !answer.Untouched());
    }
    EXPECT_EQ(live.Learned(widths), producer != here.get());
    EXPECT_LE(live.Factors(widths, Clock::Real()->Now()).compute, 1);
  }
}

// Each chunk's rows are read once for all sequences that attend them, and the answer has the bits
// of one sequence with all query rows.
TEST_F(AttendHereTest, SequencesOverOneDocumentShareItsRows) {
  LiveHere live;
  NewCalls(live);
  const QueryView q = {q_.data(), kRows, kQueryValues};
  const RouteSegment all = Rows(0, kRows);
  const Answer want = Attend(q, {&all, 1});
  EXPECT_EQ(device_.runs(), corpus_.chunks.size());
  const std::vector<RouteSegment> three = {Rows(0, 10), Rows(10, 5), Rows(15, 15)};
  EXPECT_TRUE(Attend(q, three).SameBits(want));
  EXPECT_EQ(device_.runs(), 2 * corpus_.chunks.size());
}

}  // namespace
}  // namespace ckv
