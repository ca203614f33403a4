// Goal: a put in steps makes what Publisher makes, names what is wrong, and may go on after it.
// Method: holders and a directory in this process.

#include "client/publish/corpus_writer.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using test::MakeTestCorpus;
using test::Soon;
using test::TestCorpus;
using testing::HasSubstr;

class CorpusWriterTest : public test::ServicesTest {
 protected:
  void SetUp() override {
    ServicesTest::SetUp();
    StartHolders(2);
    publisher_ = std::make_unique<Publisher>(directory_->address(), Clock::Real());
  }
  absl::StatusOr<std::unique_ptr<CorpusWriter>> Begin(const ChunkId& parent = {},
                                                      bool create = true) {
    WriteTarget target{.extend = {.corpus = "docs", .create = create}, .parent = parent};
    if (create) target.geometry = corpus_.geometry;
    return CorpusWriter::Begin(
        publisher_.get(), target, [this](uint64_t bytes) { return TakeQuota(bytes); }, Soon());
  }
  absl::Status TakeQuota(uint64_t bytes) {
    if (bytes > quota_) return absl::ResourceExhaustedError("no room");
    quota_ -= bytes;
    return absl::OkStatus();
  }
  absl::Status AddChunk(CorpusWriter& writer, size_t chunk) {
    return writer.AddChunk({.token_ids = corpus_.chunks[chunk].info.token_ids});
  }
  void AddRows(CorpusWriter& writer, size_t chunk) {
    for (uint32_t layer = 0; layer < corpus_.geometry.layers; ++layer) {
      ASSERT_TRUE(
          writer.AddRows(layer, 0, std::as_bytes(std::span(corpus_.chunks[chunk].layers[layer])))
              .ok());
    }
  }

  TestCorpus corpus_ = MakeTestCorpus(test::TestGeometry(), {40, 70, 9}, 3);
  std::unique_ptr<Publisher> publisher_;
  uint64_t quota_ = uint64_t{1} << 30;
};

TEST_F(CorpusWriterTest, ChunksOfAChainHaveTheIdsOfALoad) {
  auto writer = Begin();
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const size_t chunk : {0u, 1u}) {
    ASSERT_TRUE(AddChunk(**writer, chunk).ok());
    AddRows(**writer, chunk);
  }
  const auto made = (*writer)->Finish(Soon());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->added_count, 2u);
  for (const size_t chunk : {0u, 1u})
    EXPECT_EQ((*writer)->chunks()[chunk].id, corpus_.chunks[chunk].info.id);
  auto more = Begin(corpus_.chunks[1].info.id, /*create=*/false);
  ASSERT_TRUE(more.ok()) << more.status();
  ASSERT_TRUE(AddChunk(**more, 2).ok());
  AddRows(**more, 2);
  const auto grown = (*more)->Finish(Soon());
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(grown->chunk_begin, 2u);
  EXPECT_EQ((*more)->chunks()[0].id, corpus_.chunks[2].info.id);
}

TEST_F(CorpusWriterTest, ContinuesAfterARefusal) {
  auto writer = Begin();
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->AddRows(0, 0, {})));
  ASSERT_TRUE(AddChunk(**writer, 0).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(AddChunk(**writer, 1))) << "rows are missing";
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Finish(Soon()).status()));
  AddRows(**writer, 0);
  const absl::Status gap =
      (*writer)->AddChunk({.token_ids = corpus_.chunks[1].info.token_ids, .position = 41});
  EXPECT_TRUE(absl::IsInvalidArgument(gap));
  EXPECT_THAT(std::string(gap.message()), HasSubstr("position 41"));
  quota_ = 10;
  EXPECT_TRUE(absl::IsResourceExhausted(AddChunk(**writer, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->AddChunk({}))) << "no tokens";
  quota_ = 1 << 20;
  ASSERT_TRUE(AddChunk(**writer, 1).ok());
  AddRows(**writer, 1);
  const auto made = (*writer)->Finish(Soon());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->added_count, 2u);
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Finish(Soon()).status())) << "it is done";
}

TEST_F(CorpusWriterTest, RefusesAnInvalidTarget) {
  EXPECT_TRUE(absl::IsNotFound(Begin({}, /*create=*/false).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Begin(corpus_.chunks[0].info.id).status()));
  const auto take = [](uint64_t) { return absl::OkStatus(); };
  for (const char* name : {"", "a b"}) {
    const WriteTarget target{.extend = {.corpus = name, .create = true},
                             .geometry = corpus_.geometry};
    EXPECT_TRUE(absl::IsInvalidArgument(
        CorpusWriter::Begin(publisher_.get(), target, take, Soon()).status()));
  }
  const WriteTarget none{.extend = {.corpus = "docs", .create = true}};
  EXPECT_TRUE(
      absl::IsInvalidArgument(CorpusWriter::Begin(publisher_.get(), none, take, Soon()).status()));
}

}  // namespace
}  // namespace ckv
