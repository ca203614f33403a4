// Goal: a holder whose device fails refuses puts and says why, answers for what is in memory, and
// takes puts again as soon as the device does. Method: a real holder over every fabric of this
// host, with a file system between whose calls fail as the test says.

#include <atomic>

#include "absl/strings/str_cat.h"
#include "tests/server/holder/holder_fixture.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using Call = FaultFileSystem::Call;
using test::RawAttend;

class HolderFaultTest : public test::HolderTest {
 protected:
  void SetUp() override {
    static int count = 0;
    options_.store_path = test::TempPath(absl::StrCat("faulty", count++));
    options_.store_files = &files_;
    files_.set_hook([this](Call call, const std::string&) {
      return failing_ && (fail_reads_ ? call == Call::kRead : call != Call::kRead)
                 ? absl::UnavailableError("input/output error")
                 : absl::OkStatus();
    });
    HolderTest::SetUp();
  }
  absl::Status PutOne(const test::TestChunk& chunk) {
    return test::PutChunk(holder_->store(), corpus_.geometry, chunk);
  }
  void TearDown() override { holder_.reset(); }

  std::atomic<bool> failing_{false};
  std::atomic<bool> fail_reads_{false};
  FaultFileSystem files_;
};

TEST_P(HolderFaultTest, RefusesPutsAndServesReads) {
  for (const test::TestChunk& chunk : corpus_.chunks) ASSERT_TRUE(PutOne(chunk).ok());
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  const auto more = test::MakeTestCorpus(corpus_.geometry, {70, 80}, /*seed=*/40);
  failing_ = true;
  for (int again = 0; again < 3; ++again) {
    const absl::Status refused = PutOne(more.chunks[0]);
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(refused.ToString().find("input/output error"), std::string::npos) << refused;
    ExpectRight(*client, Dense({handles[0], handles[1], handles[2], handles[3], handles[4]}, 3));
  }
  EXPECT_EQ(holder_->stats().table.chunk_count, corpus_.chunks.size());
  failing_ = false;
  for (const test::TestChunk& chunk : more.chunks) EXPECT_TRUE(PutOne(chunk).ok());
  ExpectRight(*client, Dense({handles[0], handles[1]}, 3));
}

// What has to be read from a device that fails is an error, not damage, and right again after it.
TEST_P(HolderFaultTest, ColdChunksWaitForTheDevice) {
  for (const test::TestChunk& chunk : corpus_.chunks) ASSERT_TRUE(PutOne(chunk).ok());
  holder_.reset();
  StartHolder();  // all cold
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  failing_ = fail_reads_ = true;
  const RawAttend attend = Dense({handles[0], handles[1]}, 3);
  EXPECT_TRUE(absl::IsUnavailable(ErrorOf(*client, attend, client->Header())));
  EXPECT_EQ(holder_->stats().damaged_count, 0u);
  failing_ = false;
  ExpectRight(*client, attend);
}

INSTANTIATE_TEST_SUITE_P(Fabrics, HolderFaultTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         test::FabricOf);

}  // namespace
}  // namespace ckv
