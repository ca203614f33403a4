// Goal: a fleet keeps the copies that its corpora want, by itself: after the loss of a holder, for
// one that restarted empty, and before one goes. No query fails meanwhile. Method: whole daemons in
// this process; the requester attends all chunks over and over while holders go and come.

#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using test::Call;
using test::ConfigOf;
using test::Soon;
using test::StartDaemon;

constexpr size_t kCopiedChunkCount = 24;

class ReplicationFleetTest : public test::ServicesTest {
 protected:
  void SetUp() override {
    Config config = ConfigOf({"directory"}, "d");
    config.repair_loss_after = std::chrono::seconds(1);
    StartDirectory(config);
    StartHolders(3);
    StartRequester();
  }
  // Puts two copies of each chunk, on the holders in turn.
  void LoadTwice(const std::string& tenant = "") {
    std::vector<std::vector<HolderId>> lists;
    for (size_t i = 0; i < 3; ++i)
      lists.push_back({{absl::StrCat("h", i)}, {absl::StrCat("h", (i + 1) % 3)}});
    for (size_t i = 0; i < kCopiedChunkCount; ++i) {
      for (const HolderId& holder : lists[i % 3]) {
        std::vector<v1::PutChunkRequest> messages =
            test::MessagesOf(corpus_.geometry, corpus_.chunks[i]);
        messages[0].mutable_header()->set_tenant(tenant);
        const grpc::Status put = test::PutMessages(*holder_stubs_[holder.name[1] - '0'], messages);
        ASSERT_TRUE(put.ok()) << put.error_message();
      }
    }
    const grpc::Status published =
        test::Publish(*directory_stub_, corpus_.Publish("c", tenant, lists));
    ASSERT_TRUE(published.ok()) << published.error_message();
  }
  v1::Corpus GetCorpus(const std::string& tenant = "") {
    v1::GetCorpusRequest request;
    request.set_name("c");
    request.set_tenant(tenant);
    v1::GetCorpusReply reply;
    EXPECT_TRUE(directory_stub_->GetCorpus(Call().get(), request, &reply).ok());
    return reply.corpus();
  }
  // Whether each chunk has two holders, none of which is `without`.
  bool IsWhole(const std::string& without, const std::string& tenant = "") {
    const v1::Corpus corpus = GetCorpus(tenant);
    for (const v1::ChunkPlacement& chunk : corpus.chunks()) {
      const std::set<std::string> holders(chunk.holders().begin(), chunk.holders().end());
      if (holders.size() != 2 || holders.contains(without)) return false;
    }
    return true;
  }
  v1::ReplicationFacts Facts() {
    v1::DescribeDirectoryReply reply;
    EXPECT_TRUE(directory_stub_->Describe(Call().get(), {}, &reply).ok());
    return reply.replication();
  }
  size_t WholeCount(size_t holder, const std::string& tenant = "") {
    v1::VerifyChunksRequest request;
    *request.mutable_geometry() = ToProto(corpus_.geometry);
    request.set_tenant(tenant);
    for (const test::TestChunk& chunk : corpus_.chunks)
      request.add_ids(std::string(chunk.info.id.AsBytes()));
    Call call;
    const auto reader = holder_stubs_[holder]->VerifyChunks(call.get(), request);
    v1::VerifyChunksReply reply;
    size_t count = 0;
    while (reader->Read(&reply)) count += reply.verdict() == v1::CHUNK_VERDICT_WHOLE;
    EXPECT_TRUE(reader->Finish().ok());
    return count;
  }
  // Every answer is right, whichever holder gave it.
  void AttendAll() {
    for (uint32_t chunk = 0; chunk < kCopiedChunkCount; ++chunk) {
      v1::AttendRequest request = test::AttendOf("c", 1, q_, corpus_.geometry.d_qk);
      request.set_chunk_begin(chunk);
      request.set_chunk_end(chunk + 1);
      v1::AttendReply reply;
      const grpc::Status status = Attend(request, &reply);
      ASSERT_TRUE(status.ok()) << status.error_message();
      test::ExpectNear(reply,
                       test::Reference(corpus_.geometry, q_, corpus_.Rows(1, chunk, chunk + 1)));
    }
  }
  template <typename Condition>
  bool AttendUntil(Condition condition) {
    for (const Instant give_up = Soon(); Clock::Real()->Now() < give_up;) {
      EXPECT_TRUE(directory_->Tick().ok());
      AttendAll();
      if (condition()) return true;
    }
    return false;
  }

  const test::TestCorpus corpus_ = test::MakeTestCorpus(
      test::TestGeometry(), std::vector<uint32_t>(kCopiedChunkCount, 64), /*seed=*/40);
  std::mt19937 random_{41};
  const std::vector<uint16_t> q_ = test::RandomBf16(4 * corpus_.geometry.d_qk, random_);
};

TEST_F(ReplicationFleetTest, RepairsALostHolder) {
  LoadTwice();
  EXPECT_EQ(GetCorpus().replica_count(), 2u);
  AttendAll();
  holders_[0]->Drain(Soon());
  holders_[0].reset();
  EXPECT_TRUE(AttendUntil([&] { return IsWhole("h0"); }));
  EXPECT_EQ(WholeCount(1), kCopiedChunkCount);
  EXPECT_EQ(WholeCount(2), kCopiedChunkCount);
  EXPECT_TRUE(AttendUntil([&] { return Facts().under_replicated_count() == 0; }));
  EXPECT_EQ(Facts().bytes_left(), 0u);
}

TEST_F(ReplicationFleetTest, CopiesAPrivateCorpusForItsTenantAlone) {
  LoadTwice("acme");
  holders_[2]->Drain(Soon());
  holders_[2].reset();
  for (const Instant give_up = Soon(); Clock::Real()->Now() < give_up;) {
    EXPECT_TRUE(directory_->Tick().ok());
    if (IsWhole("h2", "acme")) break;
  }
  EXPECT_TRUE(IsWhole("h2", "acme"));
  EXPECT_EQ(WholeCount(0, "acme"), kCopiedChunkCount);
  EXPECT_EQ(WholeCount(0, ""), 0u);
}

// A holder in memory restarts before it counts as lost, and is empty. It gets its own chunks again,
// and no corpus changes.
TEST_F(ReplicationFleetTest, RefillsAHolderThatRestartedEmpty) {
  LoadTwice();
  const uint64_t version = GetCorpus().version();
  ASSERT_EQ(WholeCount(1), kCopiedChunkCount / 3 * 2);
  holders_[1]->Drain(Soon());
  holders_[1].reset();
  StartHolderAgain(1);
  EXPECT_TRUE(AttendUntil([&] { return WholeCount(1) == kCopiedChunkCount / 3 * 2; }));
  EXPECT_TRUE(AttendUntil([&] { return Facts().under_replicated_count() == 0; }));
  EXPECT_EQ(GetCorpus().version(), version);
}

TEST_F(ReplicationFleetTest, DrainsAHolder) {
  LoadTwice();
  v1::DrainHolderReply reply;
  const auto drain = [&](const std::string& name, std::optional<bool> on) {
    v1::DrainHolderRequest request;
    request.set_name(name);
    if (on) request.set_drain(*on);
    reply.Clear();
    return directory_stub_->DrainHolder(Call().get(), request, &reply).error_code();
  };
  EXPECT_EQ(drain("h9", true), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(drain("", true), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_EQ(drain("h2", true), grpc::StatusCode::OK);
  EXPECT_TRUE(reply.is_draining());
  EXPECT_FALSE(reply.may_go());
  EXPECT_EQ(reply.chunk_count(), kCopiedChunkCount / 3 * 2);
  EXPECT_TRUE(AttendUntil([&] {
    EXPECT_EQ(drain("h2", std::nullopt), grpc::StatusCode::OK);
    return reply.may_go();
  }));
  EXPECT_TRUE(IsWhole("h2"));
  holders_[2]->Drain(Soon());
  holders_[2].reset();
  AttendAll();
  EXPECT_EQ(WholeCount(0), kCopiedChunkCount);
  EXPECT_EQ(WholeCount(1), kCopiedChunkCount);
  ASSERT_EQ(drain("h2", false), grpc::StatusCode::OK);
  EXPECT_FALSE(reply.is_draining());
}

}  // namespace
}  // namespace ckv
