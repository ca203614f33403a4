// Goal: a holder with damaged files serves none of them, and restores all of them from its replicas
// by itself. Method: two whole daemons in this process with a replica each of every chunk. The
// files of one are damaged while it is down, in rows and in headers. Its scrub and its repairs do
// the rest while a requester continues to query.

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/upkeep/repair_stub.h"
#include "tests/server/services/services_fixture.h"
#include "tests/server/web/scrape.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using test::Call;
using test::ConfigOf;
using test::Soon;
using test::StartDaemon;

constexpr size_t kChunkCount = 12;

class RepairFleetTest : public test::ServicesTest {
 protected:
  void SetUp() override {
    ServicesTest::SetUp();
    static int count = 0;
    path_ = test::TempPath(absl::StrCat("repair", count++));
    fs::create_directory(path_);
    for (int i = 0; i < 2; ++i) Start(i);
    StartRequester();
  }
  void Start(int i) {
    if (nodes_[i] != nullptr) nodes_[i]->Drain(Soon());
    nodes_[i].reset();
    const std::string name = absl::StrCat("h", i);
    Config config = MemberOf({"holder"}, name);
    config.store_path = absl::StrCat(path_, "/", name);
    config.store_capacity_bytes = 1u << 20;
    config.store_scrub_bytes_per_second = 1u << 30;
    config.metrics_address = "127.0.0.1:0";
    nodes_[i] = StartDaemon(config);
    stubs_[i] = v1::HolderService::NewStub(MakeChannel(nodes_[i]->address()));
  }
  void Load(const std::string& tenant, const std::vector<HolderId>& holders) {
    for (const test::TestChunk& chunk : corpus_.chunks) {
      std::vector<v1::PutChunkRequest> messages = test::MessagesOf(corpus_.geometry, chunk);
      messages[0].mutable_header()->set_tenant(tenant);
      for (const HolderId& holder : holders) {
        const grpc::Status put = test::PutMessages(*stubs_[holder.name == "h1"], messages);
        ASSERT_TRUE(put.ok()) << put.error_message();
      }
    }
    const grpc::Status published =
        test::Publish(*directory_stub_, corpus_.Publish("c", tenant, {holders}));
    ASSERT_TRUE(published.ok()) << published.error_message();
  }
  std::string FileOf(int holder, size_t chunk) {
    return test::ChunkFileOf(absl::StrCat(path_, "/h", holder), corpus_.chunks[chunk].info.id);
  }
  void Flip(int holder, size_t chunk, int64_t offset) {
    test::FlipBits(FileOf(holder, chunk), offset, 32);
  }
  // Of the last layer's rows.
  int64_t RowsOf(int holder, size_t chunk) {
    return static_cast<int64_t>(fs::file_size(FileOf(holder, chunk))) - 500;
  }
  v1::StatsReply StatsOf(int holder) {
    v1::StatsReply stats;
    EXPECT_TRUE(stubs_[holder]->Stats(Call().get(), {}, &stats).ok());
    return stats;
  }
  size_t WholeCount(int holder, const std::string& tenant = "") {
    v1::VerifyChunksRequest request;
    *request.mutable_geometry() = ToProto(corpus_.geometry);
    request.set_tenant(tenant);
    for (const test::TestChunk& chunk : corpus_.chunks)
      request.add_ids(std::string(chunk.info.id.AsBytes()));
    Call call;
    const auto reader = stubs_[holder]->VerifyChunks(call.get(), request);
    v1::VerifyChunksReply reply;
    size_t count = 0;
    while (reader->Read(&reply)) count += reply.verdict() == v1::CHUNK_VERDICT_WHOLE;
    EXPECT_TRUE(reader->Finish().ok());
    return count;
  }
  // Every answer is right, whichever holder gave it, or an error.
  void AttendAll(bool all_answer) {
    for (uint32_t chunk = 0; chunk < kChunkCount; ++chunk) {
      v1::AttendRequest request = test::AttendOf("c", 1, q_, corpus_.geometry.d_qk);
      request.set_chunk_begin(chunk);
      request.set_chunk_end(chunk + 1);
      v1::AttendReply reply;
      const grpc::Status status = Attend(request, &reply);
      if (!status.ok()) {
        EXPECT_FALSE(all_answer) << status.error_message();
        continue;
      }
      test::ExpectNear(reply,
                       test::Reference(corpus_.geometry, q_, corpus_.Rows(1, chunk, chunk + 1)));
    }
  }

  const test::TestCorpus corpus_ = test::MakeTestCorpus(
      test::TestGeometry(), std::vector<uint32_t>(kChunkCount, 400), /*seed=*/30);
  std::mt19937 random_{31};
  const std::vector<uint16_t> q_ = test::RandomBf16(4 * corpus_.geometry.d_qk, random_);
  std::string path_;
  std::unique_ptr<Daemon> nodes_[2];
  std::unique_ptr<v1::HolderService::Stub> stubs_[2];
};

TEST_F(RepairFleetTest, FindsAndRepairsDamagedChunks) {
  Load("", {{"h0"}, {"h1"}});
  AttendAll(true);
  nodes_[0]->Drain(Soon());
  nodes_[0].reset();
  // Seven in their rows, which the scrub finds, or a request's read; two in their headers, which
  // the start finds.
  for (size_t chunk = 0; chunk < 7; ++chunk) Flip(0, chunk, RowsOf(0, chunk));
  for (size_t chunk = 7; chunk < 9; ++chunk) Flip(0, chunk, 200);
  Start(0);
  v1::StatsReply stats;
  for (const Instant give_up = Soon(); Clock::Real()->Now() < give_up;) {
    AttendAll(false);
    stats = StatsOf(0);
    if (stats.repaired_count() == 9) break;
  }
  EXPECT_EQ(stats.repaired_count(), 9u);
  EXPECT_EQ(stats.damaged_count(), 7u);
  EXPECT_GT(stats.scrubbed_bytes(), 0u);
  EXPECT_EQ(WholeCount(0), kChunkCount);
  const test::Scrape scrape(nodes_[0]->metrics_address());
  EXPECT_EQ(scrape["ckv_holder_store_damaged_total"], 7);
  EXPECT_EQ(scrape["ckv_holder_store_repaired_total"], 9);
  EXPECT_EQ(scrape["ckv_holder_store_repair_failures_total"], 0);
  EXPECT_EQ(scrape["ckv_holder_store_repairs_pending"], 0);
  EXPECT_EQ(scrape["ckv_holder_store_unreadable_total"], 0);
  EXPECT_GE(scrape["ckv_holder_store_scrubbed_bytes_total"], stats.scrubbed_bytes());
  EXPECT_EQ(scrape["ckv_holder_chunks"], kChunkCount);
  EXPECT_EQ(scrape["ckv_holder_queue_requests{queue=\"cold\"}"], 0);
  // It answers for them by itself, and has them after another start.
  nodes_[1]->Drain(Soon());
  nodes_[1].reset();
  Start(0);
  EXPECT_EQ(WholeCount(0), kChunkCount);
  for (const Instant give_up = Soon(); Clock::Real()->Now() < give_up;) {
    v1::AttendReply reply;
    if (Attend(test::AttendOf("c", 1, q_, corpus_.geometry.d_qk), &reply).ok()) break;
  }
  AttendAll(true);
}

// A damaged header does not name a private corpus' tenant; the directory's records do.
TEST_F(RepairFleetTest, RepairsAPrivateChunkForItsTenantAlone) {
  Load("acme", {{"h0"}, {"h1"}});
  nodes_[0]->Drain(Soon());
  nodes_[0].reset();
  Flip(0, 0, 200);
  Flip(0, 1, RowsOf(0, 1));
  Start(0);
  for (const Instant give_up = Soon();
       StatsOf(0).repaired_count() < 2 && Clock::Real()->Now() < give_up;) {
  }
  EXPECT_EQ(StatsOf(0).repaired_count(), 2u);
  EXPECT_EQ(WholeCount(0, "acme"), kChunkCount);
  EXPECT_EQ(WholeCount(0, ""), 0u);
}

// If it was the only copy, every report states that.
TEST_F(RepairFleetTest, ReportsDamageWithoutAReplica) {
  Load("", {{"h0"}});
  nodes_[0]->Drain(Soon());
  nodes_[0].reset();
  Flip(0, 3, RowsOf(0, 3));
  Start(0);
  for (const Instant give_up = Soon();
       StatsOf(0).damaged_count() < 1 && Clock::Real()->Now() < give_up;) {
  }
  EXPECT_EQ(WholeCount(0), kChunkCount - 1);
  for (const Instant give_up = Soon(); Clock::Real()->Now() < give_up;) {
    const test::Scrape scrape(nodes_[0]->metrics_address());
    if (scrape["ckv_holder_store_repair_failures_total"] == 1) break;
  }
  EXPECT_EQ(test::Scrape(nodes_[0]->metrics_address())["ckv_holder_store_repair_failures_total"],
            1);
  RepairStub source({.id = {"h0"},
                     .role = MemberRole::kHolder,
                     .control_address = nodes_[0]->address(),
                     .epoch = {}},
                    directory_->address(), Clock::Real());
  const auto restored = source.Restore({.id = corpus_.chunks[3].info.id, .readers = {""}}, Soon());
  EXPECT_EQ(restored.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(restored.status().message()), testing::HasSubstr("load the corpus"));
  EXPECT_EQ(source.Restore({.id = ChunkId{}}, Soon()).status().code(), absl::StatusCode::kNotFound);
  source.Cancel();
  EXPECT_FALSE(source.Restore({.id = ChunkId{}}, Soon()).ok());
  EXPECT_EQ(StatsOf(0).repaired_count(), 0u);
}

}  // namespace
}  // namespace ckv
