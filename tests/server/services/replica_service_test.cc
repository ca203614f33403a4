// Goal: copies over gRPC keep what the .proto comments promise, from the call that makes them to
// the metrics that count them. Method: a directory, two holders and a ckvd that is holder and
// requester, in this process.

#include "client/grpc/directory_stub.h"
#include "server/upkeep/replica_stub.h"
#include "tests/server/services/services_fixture.h"
#include "tests/server/web/scrape.h"

namespace ckv {
namespace {

using test::Call;
using test::ConfigOf;
using test::Soon;
using test::StartDaemon;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ReplicaServiceTest : public test::ServicesTest {
 protected:
  void StartBoth(uint32_t replicas_percent = 25) {
    Config config = MemberOf({"holder", "requester"}, "both");
    config.metrics_address = "127.0.0.1:0";
    config.replicas_percent = replicas_percent;
    both_ = StartDaemon(config);
    both_requester_ = v1::RequesterService::NewStub(MakeChannel(both_->address()));
    both_holder_ = v1::HolderService::NewStub(MakeChannel(both_->address()));
  }
  grpc::Status Replicate(v1::RequesterService::StubInterface& at, uint32_t begin, uint32_t end,
                         v1::ReplicateReply* reply) {
    v1::ReplicateRequest request;
    request.set_corpus("c");
    request.set_chunk_begin(begin);
    request.set_chunk_end(end);
    request.set_timeout_ms(20'000);
    return at.Replicate(Call().get(), request, reply);
  }
  std::vector<HolderId> Leased(uint32_t chunk) {
    DirectoryStub stub(directory_->address(), Clock::Real());
    const auto corpus = stub.GetCorpus("c", "", Soon());
    EXPECT_TRUE(corpus.ok()) << corpus.status();
    return corpus.ok() ? corpus->chunks[chunk].leased() : std::vector<HolderId>();
  }

  std::unique_ptr<Daemon> both_;
  std::unique_ptr<v1::RequesterService::Stub> both_requester_;
  std::unique_ptr<v1::HolderService::Stub> both_holder_;
};

TEST_F(ReplicaServiceTest, ReportsCountsAndReleasesCopies) {
  StartHolders(2);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {40, 0, 130}, /*seed=*/1);
  Load("c", corpus);
  StartBoth();
  v1::ReplicateReply reply;
  grpc::Status status = Replicate(*both_requester_, 0, 0, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.fetched_count(), 3u);
  EXPECT_EQ(reply.fetched_bytes(), 170 * corpus.geometry.token_bytes());
  for (uint32_t i = 0; i < 3; ++i) EXPECT_THAT(Leased(i), ElementsAre(HolderId{"both"}));
  v1::StatsReply stats;
  ASSERT_TRUE(both_holder_->Stats(Call().get(), {}, &stats).ok());
  EXPECT_EQ(stats.chunk_count(), 3u);
  const test::Scrape scrape(both_->metrics_address());
  EXPECT_EQ(scrape["ckv_replicas_chunks"], 3);
  EXPECT_EQ(scrape["ckv_replicas_fetched_total"], 3);
  EXPECT_EQ(scrape["ckv_replicas_limit_bytes"], (16u << 20) / 100 * 25);

  // A put of what is here makes it its putter's: released, it stays.
  EXPECT_EQ(test::Put(*both_holder_, corpus.geometry, corpus.chunks[2]).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  v1::ReleaseReplicasRequest release;
  release.set_corpus("c");
  v1::ReleaseReplicasReply released;
  status = both_requester_->ReleaseReplicas(Call().get(), release, &released);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(released.released_count(), 3u);
  EXPECT_THAT(Leased(0), IsEmpty());
  ASSERT_TRUE(both_holder_->Stats(Call().get(), {}, &stats).ok());
  EXPECT_EQ(stats.chunk_count(), 1u);
  both_->Drain(Soon());
}

TEST_F(ReplicaServiceTest, ADrainEndsWhatWasAnnounced) {
  StartHolders(1);
  Load("c", test::MakeTestCorpus(test::TestGeometry(), {40}, /*seed=*/2));
  StartBoth();
  v1::ReplicateReply reply;
  ASSERT_TRUE(Replicate(*both_requester_, 0, 1, &reply).ok());
  EXPECT_THAT(Leased(0), ElementsAre(HolderId{"both"}));
  both_->Drain(Soon());
  EXPECT_THAT(Leased(0), IsEmpty());
}

// Goal: a chunk that a put reports as present stays, though a replica arrived during the put (I3).
TEST_F(ReplicaServiceTest, ACopyThatArrivesDuringAPutIsThePutters) {
  StartHolders(1);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {40}, /*seed=*/2);
  Load("c", corpus);
  StartBoth();
  const auto messages = test::MessagesOf(corpus.geometry, corpus.chunks[0]);
  auto context = Call();
  v1::PutChunkReply put;
  const auto writer = both_holder_->PutChunk(context.get(), &put);
  for (size_t i = 0; i + 1 < messages.size(); ++i) ASSERT_TRUE(writer->Write(messages[i]));
  v1::ReplicateReply reply;
  ASSERT_TRUE(Replicate(*both_requester_, 0, 1, &reply).ok());
  ASSERT_TRUE(writer->Write(messages.back()));
  writer->WritesDone();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  v1::ReleaseReplicasRequest release;
  release.set_corpus("c");
  v1::ReleaseReplicasReply released;
  ASSERT_TRUE(both_requester_->ReleaseReplicas(Call().get(), release, &released).ok());
  v1::StatsReply stats;
  ASSERT_TRUE(both_holder_->Stats(Call().get(), {}, &stats).ok());
  EXPECT_EQ(stats.chunk_count(), 1u);
  both_->Drain(Soon());
}

TEST_F(ReplicaServiceTest, Refusals) {
  StartHolders(1);
  StartRequester();
  Load("c", test::MakeTestCorpus(test::TestGeometry(), {40}, /*seed=*/3));
  v1::ReplicateReply reply;
  grpc::Status status = Replicate(*requester_stub_, 0, 1, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("--role=holder,requester"));
  StartBoth(/*replicas_percent=*/0);
  status = Replicate(*both_requester_, 0, 1, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("--replicas-percent"));
  EXPECT_EQ(Replicate(*both_requester_, 0, 2, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  v1::AnnounceReplicasRequest announce;
  announce.add_ids(std::string(32, 'x'));
  v1::AnnounceReplicasReply announced;
  EXPECT_EQ(directory_stub_->AnnounceReplicas(Call().get(), announce, &announced).error_code(),
            grpc::StatusCode::NOT_FOUND);
  announce.add_ids("short");
  EXPECT_EQ(directory_stub_->AnnounceReplicas(Call().get(), announce, &announced).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::WithdrawReplicasRequest withdraw;
  for (int i = 0; i < 4097; ++i) withdraw.add_ids(std::string(32, 'x'));
  v1::WithdrawReplicasReply withdrawn;
  EXPECT_EQ(directory_stub_->WithdrawReplicas(Call().get(), withdraw, &withdrawn).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// Goal: a chunk's description is given to those who may read its rows; others find none (I6).
TEST_F(ReplicaServiceTest, AChunksDescription) {
  StartHolders(1);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 7}, /*seed=*/4);
  auto messages = test::MessagesOf(corpus.geometry, corpus.chunks[1]);
  messages[0].mutable_header()->set_tenant("red");
  ASSERT_TRUE(test::PutMessages(*holder_stubs_[0], messages).ok());
  v1::GetChunkInfoRequest request;
  request.set_id(std::string(corpus.chunks[1].info.id.AsBytes()));
  *request.mutable_geometry() = ToProto(corpus.geometry);
  request.set_tenant("red");
  v1::GetChunkInfoReply reply;
  const auto ask = [&] { return holder_stubs_[0]->GetChunkInfo(Call().get(), request, &reply); };
  ASSERT_TRUE(ask().ok());
  EXPECT_EQ(reply.position(), 5u);
  EXPECT_EQ(reply.parent(), corpus.chunks[0].info.id.AsBytes());
  EXPECT_EQ(*Int32sFromBytes(reply.token_ids(), 100), corpus.chunks[1].info.token_ids);
  EXPECT_EQ(std::vector<uint64_t>(reply.tensor_checksums().begin(), reply.tensor_checksums().end()),
            corpus.chunks[1].info.tensor_checksums);

  ChunkInfoStub stub(Clock::Real());
  const Member h0{.id = {"h0"},
                  .role = MemberRole::kHolder,
                  .control_address = holders_[0]->address(),
                  .epoch = {}};
  const ChunkId id = corpus.chunks[1].info.id;
  const auto info = stub.GetChunkInfo(h0, id, corpus.geometry, "red", Soon());
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_TRUE(ValidateChunkInfo(*info, corpus.geometry).ok());
  EXPECT_THAT(
      std::string(stub.GetChunkInfo(h0, id, corpus.geometry, "", Soon()).status().message()),
      HasSubstr("holder h0 at " + holders_[0]->address() + ": GetChunkInfo"));

  request.set_tenant("blue");
  const grpc::Status denied = ask();
  request.set_tenant("red");
  *request.mutable_id() = std::string(32, 'x');
  const grpc::Status unknown = ask();
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_id(std::string(corpus.chunks[1].info.id.AsBytes()));
  request.mutable_geometry()->set_revision("r2");
  EXPECT_EQ(ask().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  request.clear_geometry();
  EXPECT_EQ(ask().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_id("short");
  EXPECT_EQ(ask().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace ckv
