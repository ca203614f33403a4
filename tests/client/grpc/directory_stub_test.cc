// Goal: a requester works with a directory of the build before, which knows no look-up of many ids.
// Method: a gRPC service that has the older call only.

#include "client/grpc/directory_stub.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "proto/convert.h"
#include "tests/support/soon.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

// Answers for the chunks of one corpus, one by one.
class OlderDirectory final : public v1::DirectoryService::Service {
 public:
  explicit OlderDirectory(Corpus corpus) : corpus_(std::move(corpus)) {}
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

TEST(DirectoryStub, QueriesAnOlderDirectoryChunkByChunk) {
  const auto chunks = test::MakeTestCorpus(test::TestGeometry(), {5, 6, 7}, /*seed=*/1);
  const Corpus corpus = chunks.Publish("c", "", {{{"h0"}}, {{"h1"}}});
  OlderDirectory directory(corpus);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&directory);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  DirectoryStub stub("127.0.0.1:" + std::to_string(port), Clock::Real());
  const std::vector<ChunkId> ids = {corpus.chunks[2].id, corpus.chunks[0].id};
  const auto placements = stub.LocateChunks(ids, corpus.geometry, "", test::Soon());
  ASSERT_TRUE(placements.ok()) << placements.status();
  EXPECT_EQ(directory.located, 2);
  ASSERT_EQ(placements->size(), 2u);
  EXPECT_EQ((*placements)[0], corpus.chunks[2]);
  EXPECT_EQ((*placements)[1], corpus.chunks[0]);
  const std::vector<ChunkId> unknown = {corpus.chunks[1].id, ChunkId()};
  const auto refused = stub.LocateChunks(unknown, corpus.geometry, "", test::Soon());
  EXPECT_TRUE(absl::IsNotFound(refused.status())) << refused.status();
  server->Shutdown();
}

}  // namespace
}  // namespace ckv
