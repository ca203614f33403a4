// Goal: one directory leads at a time, and another soon after it is gone; changes survive what
// happens to etcd's members.
// Method: real members on loopback, which are killed and stopped.

#include "server/directory/etcd/leader_election.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "server/directory/etcd/etcd_keys.h"
#include "tests/support/etcd_cluster.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Remembers what it was told.
class Candidate final : public LeaderSink {
 public:
  Candidate(const test::EtcdCluster& cluster, const std::string& key, const std::string& address)
      : client_(cluster.endpoints(), Clock::Real()),
        election_(std::make_unique<LeaderElection>(
            LeaderElection::Options{.key = key, .address = address}, &client_, Clock::Real(),
            this)) {}

  absl::Status Lead(int64_t fence, const LeaderElection& /*election*/) override {
    absl::MutexLock lock(&mu_);
    fence_ = fence;
    return absl::OkStatus();
  }
  void Follow() override {
    absl::MutexLock lock(&mu_);
    fence_ = 0;
  }
  void SeeLeader(const std::string& address) override {
    absl::MutexLock lock(&mu_);
    leader_ = address;
  }

  bool AwaitLead(Duration at_most) {
    return Await([this] { return fence_ != 0; }, at_most);
  }
  bool AwaitFenceAbove(int64_t fence, Duration at_most) {
    return Await([&] { return fence_ > fence; }, at_most);
  }
  bool AwaitFollow(Duration at_most) {
    return Await([this] { return fence_ == 0; }, at_most);
  }
  bool AwaitLeader(const std::string& address, Duration at_most) {
    return Await([&] { return leader_ == address; }, at_most);
  }
  int64_t fence() {
    absl::MutexLock lock(&mu_);
    return fence_;
  }
  LeaderElection& election() { return *election_; }
  EtcdClient& client() { return client_; }
  void Leave() { election_.reset(); }

 private:
  template <typename Holds>
  bool Await(Holds holds, Duration at_most) {
    absl::MutexLock lock(&mu_);
    return Clock::Real()->Await(mu_, absl::Condition(&holds), Clock::Real()->Now() + at_most);
  }

  absl::Mutex mu_;
  int64_t fence_ = 0;
  std::string leader_;
  EtcdClient client_;
  std::unique_ptr<LeaderElection> election_;
};

class LeaderElectionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::EtcdCluster::IsInstalled())
      GTEST_SKIP() << "no etcd; to run it: deploy/install-packages.sh tests";
  }
  static constexpr Duration kSoon = seconds(20);
};

TEST_F(LeaderElectionTest, OneLeadsAndTheNextFollowsIt) {
  test::EtcdCluster cluster(1);
  Candidate a(cluster, "/x/leader", "a:1");
  ASSERT_TRUE(a.AwaitLead(kSoon));
  Candidate b(cluster, "/x/leader", "b:1");
  EXPECT_TRUE(b.AwaitLeader("a:1", kSoon));
  EXPECT_FALSE(b.election().Leads());
  EXPECT_TRUE(a.election().Leads());
  const int64_t first = a.fence();
  a.Leave();
  ASSERT_TRUE(b.AwaitLead(kSoon));
  EXPECT_GT(b.fence(), first);
}

TEST_F(LeaderElectionTest, ALeaderWhoseKeyIsDeletedFollows) {
  test::EtcdCluster cluster(1);
  Candidate a(cluster, "/x/leader", "a:1");
  ASSERT_TRUE(a.AwaitLead(kSoon));
  const int64_t first = a.fence();
  EtcdClient operators(cluster.endpoints(), Clock::Real());
  EtcdTransaction deletion;
  deletion.writes = {
      {.kind = EtcdWrite::Kind::kDelete, .keys = EtcdKeys::One("/x/leader"), .value = ""}};
  ASSERT_TRUE(operators.Commit(deletion, Clock::Real()->Now() + kSoon).ok());
  ASSERT_TRUE(a.AwaitFenceAbove(first, kSoon)) << "it campaigns again";
}

// Its lease is taken away, as if it had been stopped for longer than it lasts.
TEST_F(LeaderElectionTest, ALeaderWhoseLeaseEndedLeadsNoMore) {
  test::EtcdCluster cluster(1);
  Candidate a(cluster, "/x/leader", "a:1");
  ASSERT_TRUE(a.AwaitLead(kSoon));
  const int64_t first = a.fence();
  int64_t lease = 0;
  ASSERT_TRUE(a.client()
                  .Read(EtcdKeys::One("/x/leader"), 0, Clock::Real()->Now() + kSoon,
                        [&](const EtcdPair& pair) {
                          lease = pair.lease;
                          return absl::OkStatus();
                        })
                  .ok());
  ASSERT_TRUE(a.client().RevokeLease(lease, Clock::Real()->Now() + kSoon).ok());
  ASSERT_TRUE(a.AwaitFenceAbove(first, kSoon)) << "no other one is there";
}

TEST_F(LeaderElectionTest, AMemberThatIsKilledOrStoppedEndsNothing) {
  test::EtcdCluster cluster(3);
  Candidate a(cluster, "/x/leader", "a:1");
  ASSERT_TRUE(a.AwaitLead(kSoon));
  for (size_t i = 0; i < cluster.size(); ++i) {
    cluster.Stop(i);
    EtcdTransaction put;
    put.writes = {{.keys = EtcdKeys::One("/x/value"), .value = std::to_string(i)}};
    const auto outcome = a.client().Commit(put, Clock::Real()->Now() + kSoon);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    cluster.Continue(i);
    cluster.Kill(i);
    const auto again = a.client().Commit(put, Clock::Real()->Now() + kSoon);
    EXPECT_TRUE(again.ok()) << again.status();
    cluster.Start(i);
  }
}

TEST_F(LeaderElectionTest, WithoutAMajorityNoneLeadsUntilItIsBack) {
  test::EtcdCluster cluster(3);
  Candidate a(cluster, "/x/leader", "a:1");
  ASSERT_TRUE(a.AwaitLead(kSoon));
  cluster.Kill(0);
  cluster.Kill(1);
  EXPECT_TRUE(a.AwaitFollow(kSoon));
  EXPECT_FALSE(a.election().Leads());
  EtcdTransaction put;
  put.writes = {{.keys = EtcdKeys::One("/x/value"), .value = "1"}};
  const auto refused = a.client().Commit(put, Clock::Real()->Now() + seconds(3));
  EXPECT_TRUE(absl::IsUnavailable(refused.status()) || absl::IsDeadlineExceeded(refused.status()))
      << refused.status();
  cluster.Start(0);
  cluster.Start(1);
  EXPECT_TRUE(a.AwaitLead(kSoon));
}

}  // namespace
}  // namespace ckv
