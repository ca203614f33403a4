// Goal: published chunks are visible whole or not at all, once, and nothing else is changed.
// Method: holders and a directory in this process; checks what they report and answer afterwards.

#include "client/publish/publisher.h"

#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "client/grpc/directory_stub.h"
#include "client/publish/chunk_assembler.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using test::MakeTestCorpus;
using test::Soon;
using test::TestCorpus;
using testing::HasSubstr;

class PublisherTest : public test::ServicesTest {
 protected:
  void SetUp() override {
    ServicesTest::SetUp();
    StartHolders(3);
    StartRequester();
    publisher_ = std::make_unique<Publisher>(directory_->address(), Clock::Real());
  }
  static void Add(MemorySource& chunks, ChunkAssembler& rows) {
    auto whole = rows.Finish();
    ASSERT_TRUE(whole.ok()) << whole.status();
    chunks.Add(std::move(whole->chunk), whole->token_hash);
  }
  // Chunks of `corpus_`, as an engine hands them out.
  MemorySource Chunks(std::initializer_list<size_t> ordinals) {
    MemorySource chunks(corpus_.geometry);
    for (const size_t i : ordinals) {
      const ChunkInfo& info = corpus_.chunks[i].info;
      auto rows = ChunkAssembler::Begin(
          corpus_.geometry, {info.parent, info.position, info.token_ids, key_}, 1 << 20);
      for (uint32_t layer = 0; layer < corpus_.geometry.layers; ++layer) {
        EXPECT_TRUE(
            (*rows)->Add(layer, 0, std::as_bytes(std::span(corpus_.chunks[i].layers[layer]))).ok());
      }
      Add(chunks, **rows);
    }
    return chunks;
  }
  absl::StatusOr<ExtendReport> Extend(std::initializer_list<size_t> ordinals,
                                      const ExtendTarget& target = {.corpus = "docs",
                                                                    .create = true}) {
    MemorySource chunks = Chunks(ordinals);
    return publisher_->Extend(target, chunks, Soon());
  }
  // A requester's answer over the corpus is that of f64 over these chunks' rows.
  void ExpectAnswers(size_t chunk_count) {
    std::mt19937 rng(5);
    const std::vector<uint16_t> q = test::RandomBf16(2 * corpus_.geometry.d_qk, rng);
    const auto due = test::Reference(corpus_.geometry, q, corpus_.Rows(1, 0, chunk_count));
    v1::AttendReply reply;
    const float* m = nullptr;
    // The requester learns of a new version from the directory, a moment after it was published.
    const Instant deadline = Soon();
    do {
      const grpc::Status status =
          Attend(test::AttendOf("docs", 1, q, corpus_.geometry.d_qk), &reply);
      ASSERT_TRUE(status.ok()) << status.error_message();
      m = reinterpret_cast<const float*>(reply.m().data());
    } while (std::abs(m[0] - due.m[0]) > 1e-4 && Clock::Real()->Now() < deadline);
    const auto* o = reinterpret_cast<const float*>(reply.o().data());
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(m[i], due.m[i], 1e-4);
    for (size_t i = 0; i < due.o.size(); ++i) ASSERT_NEAR(o[i], due.o[i], 1e-3);
  }
  uint64_t PutCount() {
    uint64_t chunks = 0;
    for (size_t i = 0; i < holders_.size(); ++i) chunks += StatsOf(i).chunk_count();
    return chunks;
  }

  TestCorpus corpus_ = MakeTestCorpus(test::TestGeometry(), {40, 70, 9, 130}, 3);
  TenantKey key_;
  std::unique_ptr<Publisher> publisher_;
};

TEST_F(PublisherTest, ACorpusIsMadeAndGrows) {
  const auto made = Extend({0, 1});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->chunk_begin, 0u);
  EXPECT_EQ(made->added_count, 2u);
  EXPECT_EQ(made->bytes_sent(), 110 * corpus_.geometry.token_bytes());
  ExpectAnswers(2);
  const auto end = publisher_->EndOf("docs", "", Soon());
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->chunk, corpus_.chunks[1].info.id);
  EXPECT_EQ(end->position, 110u);
  EXPECT_EQ(end->chunk_count, 2u);
  const auto grown = Extend({2, 3}, {.corpus = "docs"});
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(grown->chunk_begin, 2u);
  EXPECT_GT(grown->version, made->version);
  ExpectAnswers(4);
  EXPECT_EQ(PutCount(), 4u);
}

TEST_F(PublisherTest, SetsThePolicyWithItsChange) {
  DirectoryStub reader(directory_->address(), Clock::Real());
  const auto policy = [&] { return reader.GetCorpus("docs", "", Soon())->policy; };
  const CorpusPolicy first = {.ttl_ms = 3'600'000, .kept_version_count = 2};
  ASSERT_TRUE(Extend({0, 1}, {.corpus = "docs", .create = true, .policy = first}).ok());
  EXPECT_EQ(policy().ttl_ms, first.ttl_ms);
  EXPECT_EQ(policy().kept_version_count, 2u);
  EXPECT_EQ(policy().quota_bytes, std::nullopt);
  // An unset field keeps what the corpus has.
  const uint64_t bytes = 200 * corpus_.geometry.token_bytes();
  ASSERT_TRUE(Extend({2}, {.corpus = "docs", .policy = {.quota_bytes = bytes}}).ok());
  EXPECT_EQ(policy().ttl_ms, first.ttl_ms);
  EXPECT_EQ(policy().quota_bytes, bytes);
  // The corpus has the chunk, and gets the policy. Without one nothing changes.
  const auto same = Extend({2}, {.corpus = "docs"});
  ASSERT_TRUE(same.ok()) << same.status();
  const auto again = Extend({2}, {.corpus = "docs", .policy = {.quota_bytes = bytes - 1}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->added_count, 0u);
  EXPECT_GT(again->version, same->version);
  EXPECT_EQ(policy().quota_bytes, bytes - 1);
  const uint64_t before = PutCount();
  EXPECT_TRUE(absl::IsResourceExhausted(Extend({3}, {.corpus = "docs"}).status()));
  EXPECT_EQ(PutCount(), before) << "nothing was sent";
  const CorpusPolicy wrong = {.kept_version_count = kKeptVersionCountMax + 1};
  EXPECT_TRUE(absl::IsInvalidArgument(Extend({3}, {.corpus = "docs", .policy = wrong}).status()));
}

// The previous answer may have been lost, and with it its report about a directory in memory.
TEST_F(PublisherTest, ARepeatedPutReportsHoldersThatDoNotKeepIt) {
  v1::RegisterRequest mute;
  mute.mutable_member()->set_id("mute");
  mute.mutable_member()->set_role(v1::MEMBER_ROLE_HOLDER);
  mute.mutable_member()->set_control_address("127.0.0.1:1");  // no one listens there
  mute.set_lease_ttl_ms(60'000);
  v1::RegisterReply registered;
  ASSERT_TRUE(directory_stub_->Register(test::Call().get(), mute, &registered).ok());
  ASSERT_TRUE(
      test::Publish(*directory_stub_, corpus_.Publish("docs", "", {{HolderId{"mute"}}})).ok());
  const auto again = Extend({0, 1});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->added_count, 0u);
  EXPECT_TRUE(absl::IsUnavailable(again->kept)) << again->kept;
  EXPECT_THAT(std::string(again->kept.message()), HasSubstr("mute"));
}

// A holder's tokens reveal a text shorter than the first chunk; the chunk's id a longer one.
TEST_F(PublisherTest, ATextInAnotherCutIsRefused) {
  const auto made = Extend({0, 1});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->kept.ok()) << made->kept;
  std::vector<int32_t> text = corpus_.chunks[0].info.token_ids;
  const std::vector<int32_t>& more = corpus_.chunks[1].info.token_ids;
  text.insert(text.end(), more.begin(), more.end());
  const auto put = [&](std::vector<int32_t> tokens) {
    ChunkInputs inputs;
    inputs.token_ids = std::move(tokens);
    inputs.key = key_;
    const std::vector<std::byte> layer(inputs.token_ids.size() * corpus_.geometry.row_bytes());
    auto rows = ChunkAssembler::Begin(corpus_.geometry, inputs, 1 << 20);
    for (uint32_t l = 0; l < corpus_.geometry.layers; ++l)
      EXPECT_TRUE((*rows)->Add(l, 0, layer).ok());
    MemorySource chunks(corpus_.geometry);
    Add(chunks, **rows);
    return publisher_->Extend({.corpus = "docs"}, chunks, Soon()).status();
  };
  for (const size_t count : {20u, 39u, 41u, 110u}) {
    const absl::Status status = put({text.begin(), text.begin() + static_cast<ptrdiff_t>(count)});
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << count << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has this text already"));
  }
  text[18] ^= 1;  // alike at the beginning only
  EXPECT_TRUE(put({text.begin(), text.begin() + 20}).ok());
}

TEST_F(PublisherTest, ARepeatedPutChangesNothing) {
  const auto made = Extend({0, 1});
  ASSERT_TRUE(made.ok()) << made.status();
  const auto again = Extend({0, 1});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->version, made->version);
  EXPECT_EQ(again->added_count, 0u);
  EXPECT_EQ(again->chunk_begin, 2u);
  // A retry after a lost answer: chunk 1 is in the corpus already, chunk 2 is not.
  const auto more = Extend({1, 2});
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ(more->added_count, 1u);
  EXPECT_EQ(more->chunk_begin, 2u);
  EXPECT_EQ(PutCount(), 3u);
}

TEST_F(PublisherTest, RefusesChunksThatDoNotFollowAndPutsNothing) {
  EXPECT_TRUE(absl::IsNotFound(Extend({0}, {.corpus = "docs"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Extend({}).status()));
  const absl::Status early = Extend({1}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(early)) << early;
  EXPECT_THAT(std::string(early.message()), HasSubstr("which is not in corpus 'docs'"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Extend({0}, {.corpus = "docs", .replicas = 4, .create = true}).status()));
  EXPECT_EQ(PutCount(), 0u);
  ASSERT_TRUE(Extend({0}).ok());
  // Another text behind the same chunk.
  const TestCorpus other = MakeTestCorpus(test::TestGeometry(), {40, 70}, 3);
  ASSERT_EQ(other.chunks[0].info.id, corpus_.chunks[0].info.id);
  ASSERT_TRUE(Extend({1}).ok());
  MemorySource fork(corpus_.geometry);
  auto rows = ChunkAssembler::Begin(corpus_.geometry,
                                    {corpus_.chunks[0].info.id, 40, {1, 2, 3}, {}}, 1 << 20);
  const std::vector<std::byte> zeros(3 * corpus_.geometry.row_bytes());
  for (uint32_t layer = 0; layer < corpus_.geometry.layers; ++layer) {
    ASSERT_TRUE((*rows)->Add(layer, 0, zeros).ok());
  }
  Add(fork, **rows);
  const absl::Status status = publisher_->Extend({.corpus = "docs"}, fork, Soon()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another chunk behind"));
  ExpectAnswers(2);
}

TEST_F(PublisherTest, CopiesAreAsManyAsTheLastChunkHas) {
  ASSERT_TRUE(Extend({0}, {.corpus = "docs", .replicas = 2, .create = true}).ok());
  ASSERT_TRUE(Extend({1}, {.corpus = "docs"}).ok());
  EXPECT_EQ(PutCount(), 4u);
}

// A holder accepts them by their verification tags; the plain ids of the same texts do not exist.
TEST_F(PublisherTest, ATenantsChunksHaveIdsOfItsKey) {
  key_.bytes[0] = 1;
  ASSERT_TRUE(Extend({0}, {.corpus = "docs", .tenant = "lab", .create = true}).ok());
  const auto end = publisher_->EndOf("docs", "lab", Soon());
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_NE(end->chunk, corpus_.chunks[0].info.id);
  EXPECT_TRUE(absl::IsNotFound(publisher_->EndOf("docs", "", Soon()).status()));
  // This directory is in memory, so it has no keys to give.
  const auto key = publisher_->KeyOf("lab", Soon());
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_TRUE(key->IsZero());
}

// The tenant's chunks would have ids that no one else can compute.
TEST_F(PublisherTest, ATenantDoesNotExtendWhatIsShared) {
  ASSERT_TRUE(Extend({0}).ok());
  const absl::Status status = Extend({1}, {.corpus = "docs", .tenant = "lab"}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is shared"));
  EXPECT_TRUE(absl::IsNotFound(publisher_->EndOf("docs", "lab", Soon()).status()));
  ASSERT_TRUE(Extend({0}, {.corpus = "docs", .tenant = "lab", .create = true}).ok());
  ASSERT_TRUE(Extend({1}, {.corpus = "docs", .tenant = "lab"}).ok());
  EXPECT_EQ(publisher_->EndOf("docs", "", Soon())->chunk_count, 1u);
  EXPECT_EQ(publisher_->EndOf("docs", "lab", Soon())->chunk_count, 2u);
}

// Each is a standalone text of its own, so all orders are right.
TEST_F(PublisherTest, ConcurrentPutsAreAllPublished) {
  constexpr uint32_t kCount = 6;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kCount; ++i) {
    threads.emplace_back([this, i] {
      const TestCorpus text = MakeTestCorpus(test::TestGeometry(), {20 + i}, 100 + i);
      MemorySource chunks(text.geometry);
      auto rows =
          ChunkAssembler::Begin(text.geometry, {{}, 0, text.chunks[0].info.token_ids, {}}, 1 << 20);
      for (uint32_t layer = 0; layer < text.geometry.layers; ++layer) {
        EXPECT_TRUE(
            (*rows)->Add(layer, 0, std::as_bytes(std::span(text.chunks[0].layers[layer]))).ok());
      }
      Add(chunks, **rows);
      const auto report = publisher_->Extend({.corpus = "texts", .create = true}, chunks, Soon());
      EXPECT_TRUE(report.ok()) << report.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto end = publisher_->EndOf("texts", "", Soon());
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->chunk_count, kCount);
}

// Another client extends the corpus during the put: rows are sent once, and stay where they are.
TEST_F(PublisherTest, ALostRaceSendsNoRowTwice) {
  ASSERT_TRUE(Extend({0}).ok());
  const TestCorpus other = MakeTestCorpus(test::TestGeometry(), {20}, 100);
  std::atomic<bool> raced = false;
  std::atomic<uint64_t> sent = 0, found = 0;
  const PutObserver observer = {
      [&](uint64_t bytes) {
        sent += bytes;
        if (raced.exchange(true)) return;
        MemorySource text(other.geometry);
        auto rows = ChunkAssembler::Begin(other.geometry,
                                          {{}, 0, other.chunks[0].info.token_ids, {}}, 1 << 20);
        for (uint32_t layer = 0; layer < other.geometry.layers; ++layer) {
          EXPECT_TRUE(
              (*rows)->Add(layer, 0, std::as_bytes(std::span(other.chunks[0].layers[layer]))).ok());
        }
        Add(text, **rows);
        EXPECT_TRUE(publisher_->Extend({.corpus = "docs"}, text, Soon()).ok());
      },
      [&](uint64_t bytes) { found += bytes; }};
  MemorySource chunks = Chunks({1, 2, 3});
  const auto report = publisher_->Extend({.corpus = "docs"}, chunks, Soon(), observer);
  ASSERT_TRUE(report.ok()) << report.status();
  const uint64_t bytes = (70 + 9 + 130) * corpus_.geometry.token_bytes();
  EXPECT_EQ(sent, bytes);
  EXPECT_EQ(found, 0u);
  EXPECT_EQ(report->bytes_sent(), bytes);
  EXPECT_EQ(report->chunk_begin, 2u);  // behind the other text
  EXPECT_EQ(report->added_count, 3u);
  EXPECT_EQ(publisher_->EndOf("docs", "", Soon())->chunk_count, 5u);
  EXPECT_EQ(PutCount(), 5u);
}

TEST_F(PublisherTest, AnotherGeometryIsRefused) {
  ASSERT_TRUE(Extend({0}).ok());
  corpus_ = MakeTestCorpus(test::TestGeometry(4), {40}, 3);
  const absl::Status status = Extend({0}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another geometry"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers"));
}

}  // namespace
}  // namespace ckv
