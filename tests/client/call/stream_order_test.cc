// Goal: a call waits once for each stream that makes its queries and rows or uses its output
// buffer. Holders are not blamed for these streams.
// Method: a requester over a backend that works only when it is waited for or triggered, streams of
// other backends, and holders that compute on this processor.

#include <memory>
#include <string>
#include <vector>

#include "client/requester.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/call/requester_stream_fixture.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::Answer;
using test::BusyStream;
using test::DeferredBackend;
using test::RandomBf16;
using test::SmallShape;
using testing::HasSubstr;
using testing::Not;

class StreamOrderTest : public test::RequesterStreamTest {};

// Streams of another backend are polled, too, for example an engine's if the processor computes. A
// call does not wait for work that is added to them later.
TEST_F(StreamOrderTest, APollingCallNeverWaitsForAnotherBackend) {
  DeferredBackend engine, cache;
  for (Backend* const backend : {static_cast<Backend*>(&device_), Backend::Cpu()}) {
    RequesterOptions options = Options();
    options.backend = backend;
    const auto requester = Start(options);
    const Context context = Open(*requester);
    const auto own = RandomBf16(kQueryValues, rng_);
    std::vector<uint16_t> made(q_.size()), made_own(own.size()), later(q_.size());
    const auto here = *engine.NewStream(1), there = *cache.NewStream(1);
    OwnRows own_rows;
    own_rows.rows = {reinterpret_cast<const std::byte*>(own.data()), 1, kQueryValues * 2};
    const Segment segment = {.row_count = kRows, .context = &context, .own = {&own_rows, 1}};
    Answer want(kRows, kAnswerValues), polled(kRows, kAnswerValues), waited(kRows, kAnswerValues);
    ASSERT_TRUE(requester->Attend(Call(segment), want.View()).ok());

    LayerCall call = Call(segment);
    call.q = {made.data(), kRows, kQueryValues, MemoryKind::kHost, here.get()};
    own_rows.rows.data = reinterpret_cast<const std::byte*>(made_own.data());
    own_rows.rows.after = there.get();
    MakeOn(*here, q_, made);
    MakeOn(*there, own, made_own);
    const uint64_t requests = RequestCount(), waits = device_.blocking_wait_count();
    const uint64_t others = engine.blocking_wait_count() + cache.blocking_wait_count();
    auto ticket = requester->Submit(call, polled.View());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    for (int i = 0; i < 10; ++i) {
      EXPECT_FALSE(ticket->Poll());
      device_.DoAll();
    }
    EXPECT_EQ(RequestCount(), requests) << "the queries are not made yet";
    engine.DoAll();
    EXPECT_TRUE(Await([&] {
      EXPECT_FALSE(ticket->Poll());
      device_.DoAll();
      return RequestCount() == requests + 2;
    }));
    MakeOn(*here, q_, later);
    cache.DoAll();
    EXPECT_TRUE(Await([&] {
      device_.DoAll();
      return ticket->Poll();
    }));
    EXPECT_FALSE(here->Ready());
    EXPECT_EQ(device_.blocking_wait_count(), waits);
    EXPECT_EQ(engine.blocking_wait_count() + cache.blocking_wait_count(), others);
    EXPECT_TRUE(ticket->Wait().ok()) << ticket->Wait();
    EXPECT_TRUE(polled.SameBits(want));

    // A blocking call waits for them.
    engine.DoAll();
    made.assign(made.size(), 0);
    made_own.assign(made_own.size(), 0);
    MakeOn(*here, q_, made);
    MakeOn(*there, own, made_own);
    const absl::Status status = requester->Attend(call, waited.View());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(waited.SameBits(want));
  }
}

TEST_F(StreamOrderTest, ABlockingCallWaitsOnceForABusyStream) {
  const auto requester = Start(Options());
  const Context context = Open(*requester);
  const Segment segment = {.row_count = kRows, .context = &context};
  DeferredBackend engine;
  BusyStream busy(&engine);
  LayerCall call = Call(segment);
  call.q.after = &busy;
  Answer answer(kRows, kAnswerValues);
  const absl::Status status = requester->Attend(call, answer.View());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(busy.waits, 1);
}

// A call waits once for each of the busy streams of queries, own rows and an answer.
TEST_F(StreamOrderTest, ABlockingCallWaitsOnceForEachBusyStream) {
  const auto requester = Start(Options());
  const Context context = Open(*requester);
  DeferredBackend engine;
  BusyStream queries(&engine), rows(&engine), answers(&engine);
  const auto own = RandomBf16(kQueryValues, rng_);
  OwnRows own_rows;
  own_rows.rows = {reinterpret_cast<const std::byte*>(own.data()), 1, kQueryValues * 2};
  const Segment segment = {.row_count = kRows, .context = &context, .own = {&own_rows, 1}};
  Answer want(kRows, kAnswerValues), answer(kRows, kAnswerValues);
  ASSERT_TRUE(requester->Attend(Call(segment), want.View()).ok());
  own_rows.rows.after = &rows;
  LayerCall call = Call(segment);
  call.q.after = &queries;
  PartialView out = answer.View();
  out.after = &answers;
  const absl::Status status = requester->Attend(call, out);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(queries.waits, 1);
  EXPECT_EQ(rows.waits, 1);
  EXPECT_EQ(answers.waits, 1);
  EXPECT_TRUE(answer.SameBits(want));
}

// An answer is written after the work that was on its stream when the queries were posted, and not
// after later work. This holds for an answer that is merged in place (slots for all) and for one
// that is copied there.
TEST_F(StreamOrderTest, AnAnswerIsBehindTheWorkThatWasOnItsStream) {
  for (const uint32_t slot_count : {64u, 2u}) {
    RequesterOptions options = Options();
    options.lane_shape = SmallShape(slot_count);
    const auto requester = Start(options);
    const Context context = Open(*requester);
    const Segment segment = {.row_count = kRows, .context = &context};
    std::vector<uint16_t> earlier(q_.size()), later(q_.size());
    const auto engine = *device_.NewStream(1);
    Answer want(kRows, kAnswerValues), answer(kRows, kAnswerValues);
    ASSERT_TRUE(requester->Attend(Call(segment), want.View()).ok());
    PartialView out = answer.View();
    out.after = engine.get();
    const uint64_t requests = RequestCount(), merges = device_.merge_count();
    auto ticket = requester->Submit(Call(segment), out);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    device_.DoAll();
    MakeOn(*engine, q_, earlier);
    EXPECT_TRUE(Await([&] {
      EXPECT_FALSE(ticket->Poll());
      return RequestCount() > requests;
    }));
    EXPECT_FALSE(ticket->Poll());
    MakeOn(*engine, q_, later);
    EXPECT_TRUE(ticket->Wait().ok()) << ticket->Wait();
    EXPECT_TRUE(answer.SameBits(want));
    EXPECT_GT(device_.merge_count(), merges);
    EXPECT_EQ(earlier, q_) << "slots: " << slot_count;
    EXPECT_FALSE(engine->Ready()) << "slots: " << slot_count;
    EXPECT_EQ(later, std::vector<uint16_t>(q_.size()));
  }
}

// A stream may be late until the deadline. Holders whose replies are in their lanes are not silent.
TEST_F(StreamOrderTest, TakesRepliesThatArrivedInTimeAfterTheDeadline) {
  const auto requester = Start(Options()), other = Start(Options());
  const Context context = Open(*requester), beside = Open(*other);
  Segment segment = {.row_count = kRows, .context = &context};
  const Segment later = {.row_count = kRows, .context = &beside};
  DeferredBackend engine;
  BusyStream busy(&engine);
  const auto own = RandomBf16(kQueryValues, rng_);
  OwnRows own_rows;
  own_rows.rows = {reinterpret_cast<const std::byte*>(own.data()), 1, kQueryValues * 2,
                   MemoryKind::kHost, &busy};
  segment.own = {&own_rows, 1};
  Answer answer(kRows, kAnswerValues), of_other(kRows, kAnswerValues);
  const uint64_t requests = RequestCount();
  auto ticket = requester->Submit(Call(segment), answer.View());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  device_.DoAll();
  EXPECT_FALSE(ticket->Poll());
  ASSERT_TRUE(Await([&] { return RequestCount() == requests + 2; }));
  // Holders answer in turn, so these are answered after the first.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(other->Attend(Call(later), of_other.View()).ok());
  clock_.Advance(2 * test::kPatience);
  EXPECT_TRUE(ticket->Poll());
  const absl::Status status = ticket->Wait();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  for (size_t i = 0; i < 2; ++i)
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(fleet_.Name(i).name)));
}

}  // namespace
}  // namespace ckv
