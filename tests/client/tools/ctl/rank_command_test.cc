// Goal: ckvctl rank shows every term of each requester's cost, and the choice, as a table and as
// JSON. Method: a directory and a holder in this process, reports as engines send them, and the
// command.

#include "client/grpc/rank_convert.h"
#include "tests/server/services/moving_chunks_fixture.h"

namespace ckv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class RankCommandTest : public test::MovingChunksTest {
 protected:
  void Report(const std::string& name, double queued, double free_bytes) {
    LoadNotice notice;
    notice.name = name;
    notice.address = "10.0.0.1:8000";
    notice.ttl = std::chrono::seconds(60);
    notice.load = {.free_bytes = free_bytes,
                   .queued = queued,
                   .batch = 2,
                   .batch_max = 2,
                   .iteration_base_us = 1000,
                   .iteration_request_us = 10};
    v1::ReportLoadReply reply;
    test::Call call;
    ASSERT_TRUE(directory_stub_->ReportLoad(call.get(), ToProto(notice), &reply).ok());
  }
};

TEST_F(RankCommandTest, ShowsEveryTermAndTheChoice) {
  StartHolders(1);
  LoadOn("docs", test::MakeTestCorpus(test::TestGeometry(), {5, 6}, /*seed=*/1), {0});
  const Ran none = Run({"rank", "docs"}, /*json=*/false);
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.text, HasSubstr("no requester reports its load"));
  Report("busy", 3, 1e9);
  Report("full", 0, 1);
  Report("idle", 0, 1e9);
  const Ran table = Run({"rank", "docs"}, /*json=*/false);
  EXPECT_EQ(table.code, 0) << table.text;
  EXPECT_THAT(table.text, AllOf(HasSubstr("11 tokens"), HasSubstr("* idle"),
                                HasSubstr("1 B, no room"), HasSubstr("unknown")));
  const Ran json = Run({"rank", "docs"});
  ASSERT_EQ(json.code, 0);
  EXPECT_EQ(json.json["best"], 2);
  EXPECT_EQ(json.json["tolerated_error"], nullptr) << "no error of congestion changes it";
  const ctl::Json& busy = json.json["requesters"][0];
  EXPECT_EQ(busy["name"], "busy");
  EXPECT_EQ(busy["queue_us"], 3 * 1020.0);
  EXPECT_EQ(busy["decode_us"], 1030.0);
  EXPECT_EQ(busy["path"], nullptr);
  EXPECT_EQ(json.json["requesters"][1]["has_room"], false);
  const Ran bad = Run({"rank"}, /*json=*/false);
  EXPECT_EQ(bad.code, 2) << "neither a corpus nor tokens";
}

}  // namespace
}  // namespace ckv
