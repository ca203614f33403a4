// Goal: a context gives back the sessions and handles it does not need, and queries no handle of a
// holder twice. Method: a real holder, and a clock that only the context's links read.

#include "client/holders/link_table.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "client/holders/retry.h"
#include "gtest/gtest.h"
#include "tests/support/shifted_clock.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::MakeTestCorpus;
using test::ShiftedClock;
using test::SmallShape;
using test::TestFleet;
using test::TestGeometry;

struct LinkTableTest : testing::Test {
  LinkTableTest() {
    options.requester = "r";
    options.clock = &clock;
    options.fabrics = {fabric.get()};
    options.shape = SmallShape();
    options.connect_timeout = std::chrono::hours(1);
  }
  // The same chunks for each tenant: another tenant is another link.
  std::shared_ptr<const Corpus> CorpusOf(const test::TestCorpus& chunks, std::string tenant) {
    return std::make_shared<const Corpus>(
        chunks.Publish("c", std::move(tenant), {{TestFleet::Name(0)}}));
  }
  HolderLink& Use(const std::shared_ptr<const Corpus>& published) {
    LinkTable::ChunkLinks& chunk_links = **table.LinksFor(published);
    const absl::Status status = table.EnsureUp(*chunk_links.links[0], kInstantMax);
    EXPECT_TRUE(status.ok()) << status;
    return *chunk_links.links[0];
  }

  ShiftedClock clock;
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  TestFleet fleet{{fabric.get()}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  LinkOptions options;
  LinkTable table{&options, &peers};
  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {3, 4, 5}, 1);
};

TEST_F(LinkTableTest, AHolderWithoutASessionLeftGetsTheOldestBack) {
  fleet.StartHolder(0, size_t{1} << 20, /*session_count_max=*/2);
  HolderLink& a = Use(CorpusOf(corpus, "a"));
  clock.Advance(std::chrono::seconds(1));
  const auto of_b = CorpusOf(corpus, "b");
  HolderLink& b = Use(of_b);
  clock.Advance(std::chrono::seconds(1));
  HolderLink& c = Use(CorpusOf(corpus, "c"));
  EXPECT_FALSE(a.is_up());
  EXPECT_TRUE(b.is_up());
  EXPECT_TRUE(c.is_up());
  // b is used again, so c is the oldest now.
  clock.Advance(std::chrono::seconds(1));
  Use(of_b);
  HolderLink& d = Use(CorpusOf(corpus, "d"));
  EXPECT_TRUE(b.is_up());
  EXPECT_FALSE(c.is_up());
  EXPECT_TRUE(d.is_up());
}

TEST_F(LinkTableTest, WithNothingToGiveBackTheRefusalIsTheAnswer) {
  fleet.StartHolder(0, size_t{1} << 20, /*session_count_max=*/1);
  LinkTable others{&options, &peers};
  Use(CorpusOf(corpus, "a"));
  LinkTable::ChunkLinks& chunk_links = **others.LinksFor(CorpusOf(corpus, "b"));
  const int sessions = fleet.session_calls();
  EXPECT_TRUE(absl::IsResourceExhausted(others.EnsureUp(*chunk_links.links[0], kInstantMax)));
  EXPECT_EQ(fleet.session_calls(), sessions + 1);
}

TEST_F(LinkTableTest, IdleLinksAreClosedOneACall) {
  fleet.StartHolder(0);
  const auto of_a = CorpusOf(corpus, "a"), of_b = CorpusOf(corpus, "b"),
             of_c = CorpusOf(corpus, "c");
  HolderLink& a = Use(of_a);
  HolderLink& b = Use(of_b);
  HolderLink& c = Use(of_c);
  // Half of the limit, so that the time the test itself takes does not count.
  clock.Advance(LinkTable::kLinkIdleMax / 2);
  Use(of_c);
  EXPECT_TRUE(a.is_up() && b.is_up());
  clock.Advance(LinkTable::kLinkIdleMax / 2);
  Use(of_c);
  EXPECT_NE(a.is_up(), b.is_up());
  Use(of_c);
  EXPECT_FALSE(a.is_up() || b.is_up());
  // A link that is about to be used is not closed first, however long it was idle.
  const int sessions = fleet.session_calls();
  clock.Advance(2 * LinkTable::kLinkIdleMax);
  Use(of_c);
  EXPECT_TRUE(c.is_up());
  EXPECT_EQ(fleet.session_calls(), sessions);
}

TEST_F(LinkTableTest, AFullMapOfHandlesEndsTheSession) {
  fleet.StartHolder(0);
  fleet.Load("c", corpus, {0, 0, 0});
  options.handle_count_max = 2;
  HolderLink& link = Use(CorpusOf(corpus, ""));
  const SessionId first = link.session();
  const std::vector<ChunkId> two = {corpus.chunks[0].info.id, corpus.chunks[1].info.id};
  const ChunkId third = corpus.chunks[2].info.id;
  ASSERT_TRUE(link.Resolve(two, kInstantMax).ok());
  ASSERT_TRUE(link.Resolve(two, kInstantMax).ok());
  EXPECT_TRUE(absl::IsAborted(link.Resolve({&third, 1}, kInstantMax)));
  EXPECT_FALSE(link.is_up());
  // The holder has dropped the session's table as well.
  EXPECT_TRUE(absl::IsNotFound(fleet.holder(0).ResolveChunks(first, two, kInstantMax).status()));
  ASSERT_TRUE(table.EnsureUp(link, kInstantMax).ok());
  EXPECT_EQ(link.Find(two[0]), nullptr);
  EXPECT_TRUE(link.Resolve({&third, 1}, kInstantMax).ok());
}

// One chunk more than two batches, requested from the middle on: three round trips.
TEST_F(LinkTableTest, HandlesAreResolvedInBatches) {
  const std::vector<uint32_t> token_counts(2 * HolderLink::kResolveCountMax + 1, 1);
  const auto many = MakeTestCorpus(TestGeometry(/*layers=*/1), token_counts, 2);
  fleet.StartHolder(0);
  fleet.Load("c", many, std::vector<size_t>(many.chunks.size(), 0));
  const auto published = CorpusOf(many, "");
  HolderLink& link = Use(published);
  LinkTable::ChunkLinks& chunk_links = **table.LinksFor(published);
  const auto count = static_cast<uint32_t>(many.chunks.size());
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t chunk = (i + 1000) % count;
    const auto handle = table.HandleOf(chunk_links, chunk, kInstantMax);
    ASSERT_TRUE(handle.ok()) << handle.status();
    EXPECT_EQ(*handle, link.Find(many.chunks[chunk].info.id)->handle.value);
  }
  EXPECT_EQ(fleet.resolve_calls(), 3);
}

// Goal: a call's attempts end (I5). A holder that failed one attempt is not queried by the next
// while another holder is left. This holds even if it answers other calls meanwhile, or its
// requested pause is over.
TEST_F(LinkTableTest, ACallTriesNoReplicaTwice) {
  const auto published = std::make_shared<const Corpus>(
      corpus.Publish("c", "", {{TestFleet::Name(0), TestFleet::Name(1), TestFleet::Name(2)}}));
  const absl::Status errors[] = {
      absl::NotFoundError("dropped here"),
      WithRetryAfter(absl::ResourceExhaustedError("full"), /*retry_after_us=*/1)};
  for (const absl::Status& error : errors) {
    table.BeginCall();
    std::vector<const HolderPeer*> requested;
    bool more = true;
    while (more && requested.size() <= 3) {
      HolderLink& link = table.Choose(**table.LinksFor(published), 0);
      requested.push_back(&link.peer());
      (void)table.Fail(link, error);
      more = table.FailOver(error);
      link.peer().avoidance.End();
      clock.Advance(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(more) << error;
    std::sort(requested.begin(), requested.end());
    EXPECT_EQ(std::unique(requested.begin(), requested.end()) - requested.begin(), 3) << error;
    EXPECT_EQ(requested.size(), 3u) << error;
  }
  // The next call may query any of them.
  table.BeginCall();
  const HolderPeer* first = &table.Choose(**table.LinksFor(published), 0).peer();
  EXPECT_EQ(first, &table.Choose(**table.LinksFor(published), 0).peer());
  EXPECT_FALSE(table.FailOver(errors[0])) << "nobody failed this call";
}

// A directory that restarts gives its holders new epochs. A further restart while a call opens new
// sessions must not fail the call. Endless restarts must not keep the call forever.
TEST_F(LinkTableTest, AHolderWhoseEpochMovesOnIsReopenedAFewTimes) {
  fleet.StartHolder(0);
  const auto published = CorpusOf(corpus, "");
  const auto fail = [&](const absl::Status& status) {
    table.Fail(Use(published), status).IgnoreError();
    return table.Reopen();
  };
  table.BeginCall();
  EXPECT_TRUE(fail(absl::UnavailableError("the lane broke")));
  EXPECT_FALSE(fail(absl::UnavailableError("the lane broke")));
  table.BeginCall();
  for (int i = 0; i < LinkTable::kEpochReopenMax; ++i)
    EXPECT_TRUE(fail(absl::AbortedError("another epoch"))) << i;
  EXPECT_FALSE(fail(absl::AbortedError("another epoch")));
  table.BeginCall();
  EXPECT_TRUE(fail(absl::AbortedError("another epoch")));
  EXPECT_FALSE(fail(absl::UnavailableError("the lane broke"))) << "that is no epoch";
}

// Reports each wait.
class WatchedStream final : public ComputeStream {
 public:
  WatchedStream() : ComputeStream(Backend::Cpu()) {}
  absl::Status Wait() override {
    on_wait();
    return absl::OkStatus();
  }
  bool Ready() const override { return false; }
  std::function<void()> on_wait = [] {};
};

// A device may still read replies in the slots of a lane that fails. Closing the lane frees their
// memory.
TEST_F(LinkTableTest, ClosesAFailedLaneOnceTheWorkIsDone) {
  fleet.StartHolder(0);
  WatchedStream stream;
  LinkTable working{&options, &peers, &stream};
  for (const auto& failure : {absl::InvalidArgumentError("a frame that breaks the rules"),
                              absl::UnavailableError("the lane broke")}) {
    LinkTable::ChunkLinks& chunk_links = **working.LinksFor(CorpusOf(corpus, ""));
    HolderLink& link = *chunk_links.links[0];
    ASSERT_TRUE(working.EnsureUp(link, kInstantMax).ok());
    int waits = 0;
    stream.on_wait = [&] {
      ++waits;
      EXPECT_TRUE(link.is_up());
    };
    EXPECT_EQ(working.Fail(link, failure).code(), failure.code());
    EXPECT_EQ(waits, 1);
    EXPECT_FALSE(link.is_up());
  }
}

TEST_F(LinkTableTest, BelongsToOneThreadAtATime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::thread([&] {
    table.Claim();
    table.BeginCall();
  }).join();
#ifdef CKV_CHECK_THREADS
  EXPECT_DEATH(table.BeginCall(), "owner_");
#endif
  table.Claim();
  table.BeginCall();
}

}  // namespace
}  // namespace ckv
