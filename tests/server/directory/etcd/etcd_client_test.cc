// Goal: a watch never claims to have seen a revision whose events it has not shown.
// Method: a real etcd on loopback, and a watch that begins far behind.

#include "server/directory/etcd/etcd_client.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/support/etcd_cluster.h"

namespace ckv {
namespace {

// etcd sends a watch that is behind at most 1,000 revisions at once.
constexpr int64_t kWriteCount = 1200;

TEST(EtcdClientTest, AWatchThatIsBehindHasSeenOnlyWhatItHasShown) {
  if (!test::EtcdCluster::IsInstalled())
    GTEST_SKIP() << "no etcd; to run it: deploy/install-packages.sh tests";
  const test::EtcdCluster cluster(1);
  EtcdClient client(cluster.endpoints(), Clock::Real());
  const Instant deadline = Clock::Real()->Now() + std::chrono::seconds(60);
  int64_t first = 0, last = 0;
  for (int64_t i = 0; i < kWriteCount; ++i) {
    EtcdTransaction write;
    write.writes = {{.keys = EtcdKeys::One("/test/key"), .value = std::to_string(i)}};
    const auto written = client.Commit(write, deadline);
    ASSERT_TRUE(written.ok()) << written.status();
    if (i == 0) first = written->revision;
    last = written->revision;
  }
  ASSERT_EQ(last - first + 1, kWriteCount) << "nobody else writes";
  int64_t shown = first - 1;
  const absl::Status watched = client.Watch(EtcdKeys::Prefix("/test/"), first,
                                            [&](std::span<const EtcdEvent> events, int64_t seen) {
                                              for (const EtcdEvent& event : events) {
                                                EXPECT_EQ(event.pair.mod_revision, shown + 1);
                                                shown = event.pair.mod_revision;
                                              }
                                              EXPECT_LE(seen, shown);
                                              return shown < last && !testing::Test::HasFailure();
                                            });
  EXPECT_TRUE(watched.ok()) << watched;
  EXPECT_EQ(shown, last);
}

}  // namespace
}  // namespace ckv
