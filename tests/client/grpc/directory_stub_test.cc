// Goal: a look-up of many chunks at a directory that does not serve it is an error, which names the
// call. Method: a gRPC service that has the look-up of one chunk only.

#include "client/grpc/directory_stub.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert.h"
#include "tests/support/soon.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

// Answers for the chunks of one corpus, one by one.
class SmallDirectory final : public v1::DirectoryService::Service {
 public:
  explicit SmallDirectory(Corpus corpus) : corpus_(std::move(corpus)) {}
  grpc::Status LocateChunk(grpc::ServerContext*, const v1::LocateChunkRequest* request,
                           v1::LocateChunkReply* reply) override {
    ++located;
    const Corpus all = corpus_;
    for (uint32_t i = 0; i < all.chunks.size(); ++i) {
      if (all.chunks[i].id.AsBytes() != request->id()) continue;
      v1::LocateChunkReply::Place* place = reply->add_places();
      place->set_corpus(all.name);
      place->set_ordinal(i);
      *place->mutable_chunk() = ToProto(all).chunks(static_cast<int>(i));
    }
    return grpc::Status::OK;
  }
  grpc::Status GetCorpus(grpc::ServerContext*, const v1::GetCorpusRequest*,
                         v1::GetCorpusReply* reply) override {
    *reply->mutable_corpus() = ToProto(corpus_);
    return grpc::Status::OK;
  }
  std::atomic<int> located{0};

 private:
  const Corpus corpus_;
};

TEST(DirectoryStub, ReportsACallThatIsNotServed) {
  const auto chunks = test::MakeTestCorpus(test::TestGeometry(), {5, 6, 7}, /*seed=*/1);
  const Corpus corpus = chunks.Publish("c", "", {{{"h0"}}, {{"h1"}}});
  SmallDirectory directory(corpus);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&directory);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  DirectoryStub stub("127.0.0.1:" + std::to_string(port), Clock::Real());
  const auto located = stub.LocateChunk(corpus.chunks[2].id, "", test::Soon());
  ASSERT_TRUE(located.ok()) << located.status();
  EXPECT_EQ(located->at(0).chunks.at(0), corpus.chunks[2]);
  EXPECT_EQ(directory.located, 1);
  const std::vector<ChunkId> ids = {corpus.chunks[2].id, corpus.chunks[0].id};
  const absl::Status refused = stub.LocateChunks(ids, corpus.geometry, "", test::Soon()).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("LocateChunks"));
  EXPECT_EQ(directory.located, 1);
  const auto unknown = stub.LocateChunk(ChunkId(), "", test::Soon());
  EXPECT_TRUE(absl::IsNotFound(unknown.status())) << unknown.status();
  server->Shutdown();
}

}  // namespace
}  // namespace ckv
