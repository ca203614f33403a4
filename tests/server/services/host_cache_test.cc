// Goal: requesters that name a cache of their host have rows travel there once, and go on without
// it. Method: a directory, two holders and a ckvd that is holder and requester, in this process,
// and two requesters as an engine's ranks have them.

#include "client/grpc/host_cache_stub.h"

#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/requester.h"
#include "tests/server/services/services_fixture.h"
#include "tests/server/web/scrape.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

using test::Soon;
using test::StartDaemon;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kAll[] = {0, 1, 2};

// A requester of this host.
struct Rank {
  Rank(const std::string& directory_address, const std::string& cache_address)
      : directory(directory_address, Clock::Real()), cache(cache_address, Clock::Real()) {
    RequesterOptions options;
    options.id = "rank";
    options.fabrics = {shm.get()};
    options.local_cache_bytes = uint64_t{64} << 20;
    options.host_cache = &cache;
    requester = *Requester::Create(options, &directory, &holders);
  }
  // The bytes of all rows, from the first `chunk_end` chunks.
  std::vector<std::byte> Fetch(const std::shared_ptr<const Corpus>& corpus) {
    std::vector<std::byte> rows;
    FetchCall call;
    call.corpus = corpus;
    call.chunk_end = static_cast<uint32_t>(corpus->chunks.size());
    call.tensor_end = corpus->geometry.layers;
    call.deadline = Soon();
    const absl::Status status = requester->Fetch(call, [&](const FetchedRows& run) {
      rows.insert(rows.end(), run.rows.begin(), run.rows.end());
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    return rows;
  }

  DirectoryStub directory;
  HolderStubFactory holders{Clock::Real()};
  std::unique_ptr<Fabric> shm = NewShmFabric(Clock::Real());
  HostCacheStub cache;
  std::unique_ptr<Requester> requester;
};

class HostCacheTest : public test::ServicesTest {
 protected:
  void SetUp() override {
    ServicesTest::SetUp();
    StartHolders(2);
    Load("c", corpus_);
    Config config = MemberOf({"holder", "requester"}, "both");
    config.metrics_address = "127.0.0.1:0";
    config.replicas_percent = 50;
    config.default_timeout = std::chrono::milliseconds(1);  // a copy has its caller's time
    both_ = StartDaemon(config);
  }
  double Copied() { return test::Scrape(both_->metrics_address())["ckv_replicas_fetched_total"]; }

  const test::TestCorpus corpus_ =
      test::MakeTestCorpus(test::TestGeometry(), {40, 0, 130}, /*seed=*/1);
  std::unique_ptr<Daemon> both_;
};

TEST_F(HostCacheTest, FetchesRowsForTwoRanksOnce) {
  Rank first(directory_->address(), both_->address());
  Rank second(directory_->address(), both_->address());
  const auto corpus = *first.requester->Resolve("c", "", Soon());
  const std::vector<std::byte> rows = first.Fetch(corpus);
  for (Rank* rank : {&first, &second}) {
    const auto kept = rank->cache.Keep(corpus, kAll, Soon());
    ASSERT_TRUE(kept.ok()) << kept.status();
    for (const ChunkPlacement& chunk : (*kept)->chunks)
      EXPECT_THAT(chunk.holders(), ElementsAre(HolderId{"both"}));
    EXPECT_EQ(rank->Fetch(*kept), rows);
    EXPECT_EQ(Copied(), 3);
  }
}

// Chunks that a prompt was found by have no corpus of a name.
TEST_F(HostCacheTest, ChunksWithoutANameAreKeptToo) {
  Rank rank(directory_->address(), both_->address());
  const std::vector<ChunkId> ids = {corpus_.chunks[2].info.id};
  const auto found = *rank.requester->ResolveChunks(ids, corpus_.geometry, "", Soon());
  const auto kept = rank.cache.Keep(found, {{0}}, Soon());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(rank.Fetch(*kept), rank.Fetch(found));
  EXPECT_EQ(Copied(), 1);
}

TEST_F(HostCacheTest, KeepsCachedRowsOfTwoRanksOnce) {
  Rank first(directory_->address(), both_->address());
  Rank second(directory_->address(), both_->address());
  for (Rank* rank : {&first, &second}) {
    const ContextPart part = {*rank->requester->Resolve("c", "", Soon()), {}};
    const auto context =
        rank->requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kCache}, Soon());
    ASSERT_TRUE(context.ok()) << context.status();
    const LocalRowStats cache = rank->requester->Stats().local_cache;
    EXPECT_EQ(cache.chunk_count, 2u) << "the one without tokens is cached anywhere";
    EXPECT_GT(cache.mapped_bytes, 0u);
    EXPECT_EQ(cache.prefetched_bytes, 0u);
    EXPECT_EQ(Copied(), 2);
  }
}

TEST_F(HostCacheTest, WithoutTheCacheRowsAreReadFromTheirHolders) {
  Rank rank(directory_->address(), both_->address());
  both_->Drain(Soon());
  both_.reset();
  const auto corpus = *rank.requester->Resolve("c", "", Soon());
  const auto kept = rank.cache.Keep(corpus, kAll, Soon());
  EXPECT_TRUE(absl::IsUnavailable(kept.status())) << kept.status();
  EXPECT_THAT(std::string(rank.cache.Keep(corpus, kAll, Soon()).status().message()),
              HasSubstr("did not answer a moment ago"));
  const ContextPart part = {corpus, {}};
  const auto context =
      rank.requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kCache}, Soon());
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ(rank.requester->Stats().local_cache.chunk_count, 2u);
}

TEST_F(HostCacheTest, AnotherDaemonThanACacheIsRefused) {
  StartRequester();
  Rank rank(directory_->address(), requester_->address());
  const auto corpus = *rank.requester->Resolve("c", "", Soon());
  const auto kept = rank.cache.Keep(corpus, kAll, Soon());
  EXPECT_TRUE(absl::IsFailedPrecondition(kept.status())) << kept.status();
  EXPECT_THAT(std::string(kept.status().message()), HasSubstr("--role=holder,requester"));
}

}  // namespace
}  // namespace ckv
