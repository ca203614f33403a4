// Goal: an operator learns of every copy whether it is whole where it is stored. Method: whole
// daemons in this process with folders whose files the test damages, called over gRPC.

#include "absl/strings/str_cat.h"
#include "server/services/chunk_order.h"
#include "server/services/chunk_verify_service.h"
#include "tests/server/services/services_fixture.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using test::Call;
using test::ConfigOf;
using test::StartDaemon;
using testing::HasSubstr;

class ChunkVerifyTest : public test::ServicesTest {
 protected:
  void SetUp() override {
    ServicesTest::SetUp();
    static int count = 0;
    path_ = test::TempPath(absl::StrCat("verify", count++));
    StartHolder();
    for (const test::TestChunk& chunk : corpus_.chunks)
      ASSERT_TRUE(test::Put(*stub_, corpus_.geometry, chunk).ok());
  }
  void StartHolder() {
    holder_.reset();
    Config config = MemberOf({"holder"}, "h0");
    config.store_path = path_;
    config.store_scrub_bytes_per_second = 0;
    holder_ = StartDaemon(config);
    stub_ = v1::HolderService::NewStub(MakeChannel(holder_->address()));
  }
  std::string FileOf(size_t chunk) {
    return test::ChunkFileOf(path_, corpus_.chunks[chunk].info.id);
  }
  v1::VerifyChunksRequest RequestOf(const std::vector<size_t>& chunks) {
    v1::VerifyChunksRequest request;
    *request.mutable_geometry() = ToProto(corpus_.geometry);
    for (const size_t chunk : chunks)
      request.add_ids(std::string(corpus_.chunks[chunk].info.id.AsBytes()));
    return request;
  }
  grpc::Status Verify(const v1::VerifyChunksRequest& request,
                      std::vector<v1::VerifyChunksReply>* replies) {
    Call call;
    const auto reader = stub_->VerifyChunks(call.get(), request);
    v1::VerifyChunksReply reply;
    while (reader->Read(&reply)) replies->push_back(reply);
    return reader->Finish();
  }

  const test::TestCorpus corpus_ =
      test::MakeTestCorpus(test::TestGeometry(), {100, 64, 0, 130, 71}, /*seed=*/8);
  std::string path_;
  std::unique_ptr<Daemon> holder_;
  std::unique_ptr<v1::HolderService::Stub> stub_;
};

TEST_F(ChunkVerifyTest, ReportsTheStateOfEachCopy) {
  StartHolder();  // all cold
  test::FlipBits(FileOf(1), -3000);
  v1::VerifyChunksRequest request = RequestOf({0, 1, 2, 3, 4});
  request.add_ids(std::string(32, 'x'));
  std::vector<v1::VerifyChunksReply> replies;
  const grpc::Status status = Verify(request, &replies);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(replies.size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(replies[i].id(), request.ids(i));
    EXPECT_EQ(replies[i].verdict(), i == 1   ? v1::CHUNK_VERDICT_DAMAGED
                                    : i == 5 ? v1::CHUNK_VERDICT_MISSING
                                             : v1::CHUNK_VERDICT_WHOLE)
        << i;
    EXPECT_EQ(replies[i].why().empty(), i != 1 && i != 5) << replies[i].why();
  }
  for (const int i : {0, 2, 3, 4}) {
    EXPECT_EQ(replies[i].rows_checksum(), DigestOf(corpus_.chunks[i].info.tensor_checksums));
    EXPECT_GE(replies[i].bytes_checked(), corpus_.chunks[i].layers[0].size() * 2 * 3);
  }
  replies.clear();
  ASSERT_TRUE(Verify(RequestOf({1}), &replies).ok());
  EXPECT_EQ(replies[0].verdict(), v1::CHUNK_VERDICT_MISSING) << "it was quarantined";
}

// Damage that the holder repairs by itself is reported, and the copy is whole.
TEST_F(ChunkVerifyTest, ReportsRepairs) {
  test::FlipBits(FileOf(0), -3000);  // hot
  std::vector<v1::VerifyChunksReply> replies;
  ASSERT_TRUE(Verify(RequestOf({0}), &replies).ok());
  EXPECT_EQ(replies[0].verdict(), v1::CHUNK_VERDICT_WHOLE);
  EXPECT_THAT(replies[0].why(), HasSubstr("written again from memory"));
}

TEST_F(ChunkVerifyTest, AnotherTenantsChunkLooksMissing) {
  const auto secret = test::MakeTestCorpus(test::TestGeometry(), {40}, /*seed=*/9);
  std::vector<v1::PutChunkRequest> messages = test::MessagesOf(secret.geometry, secret.chunks[0]);
  messages[0].mutable_header()->set_tenant("a");
  ASSERT_TRUE(test::PutMessages(*stub_, messages).ok());
  v1::VerifyChunksRequest request = RequestOf({});
  request.add_ids(std::string(secret.chunks[0].info.id.AsBytes()));
  std::vector<v1::VerifyChunksReply> replies;
  for (const char* tenant : {"", "b", "a"}) {
    request.set_tenant(tenant);
    ASSERT_TRUE(Verify(request, &replies).ok());
  }
  request.mutable_geometry()->set_revision("other");
  ASSERT_TRUE(Verify(request, &replies).ok());
  const v1::ChunkVerdict want[] = {v1::CHUNK_VERDICT_MISSING, v1::CHUNK_VERDICT_MISSING,
                                   v1::CHUNK_VERDICT_WHOLE, v1::CHUNK_VERDICT_MISSING};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(replies[i].verdict(), want[i]) << i;
}

TEST_F(ChunkVerifyTest, RefusesMalformedRequests) {
  std::vector<v1::VerifyChunksReply> replies;
  v1::VerifyChunksRequest request = RequestOf({0});
  request.add_ids("short");
  EXPECT_EQ(Verify(request, &replies).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = RequestOf({});
  for (int i = 0; i <= kOrderIdCountMax; ++i) request.add_ids(std::string(32, 'x'));
  EXPECT_EQ(Verify(request, &replies).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = RequestOf({0});
  request.set_tenant(std::string(200, 'a'));
  EXPECT_EQ(Verify(request, &replies).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = RequestOf({0});
  request.clear_geometry();
  EXPECT_EQ(Verify(request, &replies).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(replies.empty());
}

// Goal: checks are bounded, end when no one listens, and hold no drain up. Method: peers that do
// not read their answers, until the streams' buffers are full and the checks wait.
TEST_F(ChunkVerifyTest, ChecksAreBoundedAndEndWithTheirPeer) {
  v1::VerifyChunksRequest request;
  *request.mutable_geometry() = ToProto(corpus_.geometry);
  for (int i = 0; i < kOrderIdCountMax; ++i)
    request.add_ids(std::string(corpus_.chunks[0].info.id.AsBytes()));
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::VerifyChunksReply>>> readers;
  v1::VerifyChunksReply reply;
  for (uint32_t i = 0; i < kVerifyCallCountMax; ++i) {
    calls.push_back(std::make_unique<Call>(std::chrono::minutes(1)));
    readers.push_back(stub_->VerifyChunks(calls.back()->get(), request));
    ASSERT_TRUE(readers.back()->Read(&reply));
  }
  std::vector<v1::VerifyChunksReply> replies;
  const grpc::Status refused = Verify(RequestOf({0}), &replies);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("retry in"));
  // One that disconnects makes room.
  calls[0]->get()->TryCancel();
  EXPECT_EQ(readers[0]->Finish().error_code(), grpc::StatusCode::CANCELLED);
  grpc::Status status;
  const Instant give_up = test::Soon();
  do {
    status = Verify(RequestOf({0}), &replies);
  } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
           Clock::Real()->Now() < give_up);
  EXPECT_TRUE(status.ok()) << status.error_message();
  const Instant begin = Clock::Real()->Now();
  holder_->Drain(begin + std::chrono::minutes(1));
  EXPECT_LT(Clock::Real()->Now() - begin, std::chrono::seconds(30));
  for (uint32_t i = 1; i < kVerifyCallCountMax; ++i) {
    while (readers[i]->Read(&reply)) {
    }
    EXPECT_FALSE(readers[i]->Finish().ok());
  }
}

}  // namespace
}  // namespace ckv
