// Goal: the small parts of the edge hold by themselves: statuses, deadlines, the gate of streams,
// the match of a prompt, the directory of the same process, the watch's reconnection.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "client/grpc/grpc_status.h"
#include "client/grpc/watch_stub.h"
#include "server/directory/local_directory.h"
#include "server/rpc/service_gate.h"
#include "server/services/corpus_match.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using testing::ElementsAre;

TEST(GrpcStatusTest, CodesAndTextsSurvive) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "what happened");
    EXPECT_EQ(ToGrpc(status).error_code(), code);
    const absl::Status back = FromGrpc(ToGrpc(status), "where");
    EXPECT_EQ(back.code(), status.code());
    EXPECT_EQ(std::string(back.message()), "where: what happened");
  }
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK, "where").ok());
}

TEST(GrpcStatusTest, ALongTextIsCutBetweenCharacters) {
  std::string text(kStatusTextBytesMax - 1, 'x');
  text += "\xc3\xa9 and more";
  const std::string cut = ToGrpc(absl::UnknownError(text)).error_message();
  EXPECT_EQ(cut, std::string(kStatusTextBytesMax - 1, 'x'));
}

constexpr auto kNothing = [](const absl::Status&) {};

TEST(ServiceGateTest, LimitsStreamsAndCancelsThoseThatWait) {
  ServiceGate gate(2);
  int cancelled_waiting = 0;
  int cancelled_busy = 0;
  {
    auto waiting = gate.Enter([&](const absl::Status& why) {
      ++cancelled_waiting;
      EXPECT_TRUE(absl::IsUnavailable(why)) << why;
    });
    ASSERT_TRUE(waiting.ok());
    auto busy = gate.Enter([&](const absl::Status&) { ++cancelled_busy; });
    ASSERT_TRUE(busy.ok());
    EXPECT_EQ(gate.Enter(kNothing).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(waiting->BeginWait());
    EXPECT_TRUE(busy->BeginWait());
    busy->EndWait();
    EXPECT_FALSE(gate.closed());
    gate.Close();
    gate.Close();
    EXPECT_TRUE(gate.closed());
    EXPECT_EQ(cancelled_waiting, 1);
    EXPECT_EQ(cancelled_busy, 0);
    waiting->EndWait();
    EXPECT_FALSE(busy->BeginWait());
  }
  EXPECT_EQ(gate.Enter(kNothing).status().code(), absl::StatusCode::kUnavailable);
}

TEST(ServiceGateTest, CancelsWaitsBeyondTheirLimitOnce) {
  ServiceGate gate(3);
  ManualClock clock;
  int cancelled = 0;
  int cancelled_others = 0;
  auto slow = gate.Enter([&](const absl::Status& why) {
    ++cancelled;
    EXPECT_TRUE(absl::IsDeadlineExceeded(why)) << why;
  });
  auto patient = gate.Enter([&](const absl::Status&) { ++cancelled_others; });
  auto busy = gate.Enter([&](const absl::Status&) { ++cancelled_others; });
  ASSERT_TRUE(slow.ok() && patient.ok() && busy.ok());
  const Instant limit = clock.Now() + std::chrono::seconds(1);
  ASSERT_TRUE(slow->BeginWait(limit) && patient->BeginWait() && busy->BeginWait(limit));
  busy->EndWait();
  gate.CancelOverdue(clock.Now());
  EXPECT_EQ(cancelled, 0);
  clock.Advance(std::chrono::seconds(1));
  gate.CancelOverdue(clock.Now());
  gate.CancelOverdue(clock.Now());
  EXPECT_EQ(cancelled, 1);
  EXPECT_EQ(cancelled_others, 0);
  gate.Close();
  EXPECT_EQ(cancelled, 1);
  EXPECT_EQ(cancelled_others, 1);
}

TEST(ServiceGateTest, AStreamThatEndsMakesRoom) {
  ServiceGate gate(1);
  for (int i = 0; i < 3; ++i) {
    const auto stream = gate.Enter(kNothing);
    EXPECT_TRUE(stream.ok()) << i;
  }
}

TEST(ServiceGateTest, LimitsStreamsOfAKind) {
  ServiceGate gate(4);
  ServiceGate::Kind puts("puts", 1), reads("reads", 1);
  auto put = gate.Enter(kNothing, &puts);
  ASSERT_TRUE(put.ok());
  const auto refused = gate.Enter(kNothing, &puts);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.status().message(), "1 puts are in progress, the limit; retry in 1000000 us");
  EXPECT_TRUE(gate.Enter(kNothing, &reads).ok());  // and ended again
  {
    const ServiceGate::Stream moved = *std::move(put);
    EXPECT_FALSE(gate.Enter(kNothing, &puts).ok());
  }
  EXPECT_TRUE(gate.Enter(kNothing, &puts).ok());
}

TEST(ServiceGateTest, IdleOnceEverythingHasEnded) {
  ServiceGate gate(4);
  ManualClock clock;
  EXPECT_TRUE(gate.AwaitIdle(clock, clock.Now()));
  {
    const auto call = gate.EnterCall();
    ASSERT_TRUE(call.ok());
    EXPECT_FALSE(gate.AwaitIdle(clock, clock.Now()));
  }
  {
    const auto stream = gate.Enter(kNothing);
    EXPECT_FALSE(gate.AwaitIdle(clock, clock.Now()));
  }
  gate.Close();
  EXPECT_EQ(gate.EnterCall().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(gate.AwaitIdle(clock, clock.Now()));
}

TEST(CorpusMatchTest, WholeChunksOnly) {
  const auto test_corpus = test::MakeTestCorpus(test::TestGeometry(), {3, 0, 4, 5}, /*seed=*/1);
  const Corpus corpus = test_corpus.Publish("c", "", {{{"a"}}});
  std::vector<int32_t> tokens;
  for (const auto& chunk : test_corpus.chunks) {
    tokens.insert(tokens.end(), chunk.info.token_ids.begin(), chunk.info.token_ids.end());
  }
  // One row a length of the prompt: chunks and tokens that it covers.
  const std::vector<std::pair<size_t, CorpusMatch>> cases = {
      {0, {0, 0}}, {2, {0, 0}}, {3, {2, 3}}, {6, {2, 3}}, {7, {3, 7}}, {11, {3, 7}}, {12, {4, 12}}};
  for (const auto& [length, expected] : cases) {
    const CorpusMatch match = MatchCorpus(corpus, std::span(tokens).first(length));
    EXPECT_EQ(match.chunk_count, expected.chunk_count) << length;
    EXPECT_EQ(match.token_count, expected.token_count) << length;
  }
  tokens.push_back(1);  // a prompt may run past the corpus
  EXPECT_EQ(MatchCorpus(corpus, tokens).token_count, 12u);
  tokens[5] ^= 1;
  EXPECT_EQ(MatchCorpus(corpus, tokens).token_count, 3u);
  Corpus other = corpus;
  other.geometry.revision = "r2";
  EXPECT_EQ(MatchCorpus(other, tokens).chunk_count, 0u);
}

// Each chunk's id is right for its own parent and position, but the list is no chain.
TEST(CorpusMatchTest, OnlyAlongTheChain) {
  const auto whole = test::MakeTestCorpus(test::TestGeometry(), {3, 4, 5}, /*seed=*/1);
  const Corpus chain = whole.Publish("c", "", {{{"a"}}});
  std::vector<int32_t> tokens = whole.chunks[0].info.token_ids;
  const std::vector<int32_t>& last = whole.chunks[2].info.token_ids;
  tokens.insert(tokens.end(), last.begin(), last.end());
  Corpus gap = chain;
  gap.chunks.erase(gap.chunks.begin() + 1);
  EXPECT_EQ(MatchCorpus(gap, tokens).chunk_count, 1u);
  Corpus headless = chain;
  headless.chunks = {chain.chunks[2]};
  EXPECT_EQ(MatchCorpus(headless, last).chunk_count, 0u);
  // The right parent at another position.
  Corpus moved = chain;
  moved.chunks = {chain.chunks[0], chain.chunks[2]};
  moved.chunks[1].set_parent(chain.chunks[0].id);
  moved.chunks[1].id = ComputeChunkId(ModelFingerprint(moved.geometry), moved.chunks[1].parent(),
                                      moved.chunks[1].position, last);
  EXPECT_EQ(MatchCorpus(moved, tokens).chunk_count, 1u);
}

TEST(LocalDirectoryTest, AnswersAsTheStubWould) {
  DirectoryState state(DirectoryOptions{});
  LocalDirectory directory(&state);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {3, 4}, /*seed=*/2);
  const Corpus published = corpus.Publish("c", "t", {{{"a"}}});
  ASSERT_TRUE(state.Publish(published, /*replace=*/false, 0).ok());
  EXPECT_EQ(directory.GetCorpus("c", "t", kInstantMax)->chunks, published.chunks);
  EXPECT_EQ(directory.GetCorpus("c", "u", kInstantMax).status().code(),
            absl::StatusCode::kNotFound);
  const auto located = directory.LocateChunk(published.chunks[1].id, "t", kInstantMax);
  ASSERT_TRUE(located.ok());
  ASSERT_EQ(located->size(), 1u);
  EXPECT_THAT((*located)[0].chunks, ElementsAre(published.chunks[1]));
  EXPECT_EQ(directory.LocateChunk(ChunkId{}, "t", kInstantMax).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(directory.ListMembers(kInstantMax)->empty());
}

// Goal: a watch of an unreachable directory reports once and ends when stopped, whatever its pause.
TEST(WatchStubTest, ADirectoryThatIsAway) {
  ManualClock clock;  // never advanced: the pause after the first try has no end but the stop
  absl::Mutex mu;
  int broken = 0;
  {
    WatchOptions options;
    options.addresses = "127.0.0.1:9";
    options.clock = &clock;
    WatchStub watch(
        options, [](std::string_view) { ADD_FAILURE() << "nothing changed"; },
        [&](const absl::Status& status) {
          EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
          absl::MutexLock lock(&mu);
          ++broken;
        });
    absl::MutexLock lock(&mu);
    const auto reported = [&] { return broken > 0; };
    EXPECT_TRUE(Clock::Real()->Await(mu, absl::Condition(&reported),
                                     Clock::Real()->Now() + std::chrono::seconds(20)));
    EXPECT_FALSE(watch.connected());
  }
  EXPECT_EQ(broken, 1);
}

}  // namespace
}  // namespace ckv
