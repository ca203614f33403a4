// Goal: a change is settled as done once it is in etcd, and as refused only if it never will be.
// Method: a real etcd on loopback, which is stopped and continued.

#include "server/directory/etcd/etcd_journal.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "tests/support/etcd_cluster.h"

namespace ckv {
namespace {

constexpr Duration kSoon = std::chrono::seconds(20);

class Settled final : public ChangeSink {
 public:
  void Settle(const DirectoryChange& change, const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    statuses_.push_back(status);
    if (status.ok()) tenants_.push_back(change.tenant);
  }
  DirectoryImage Image() override { return {}; }

  std::vector<absl::Status> Await(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto holds = [&] { return statuses_.size() >= count; };
    EXPECT_TRUE(Clock::Real()->Await(mu_, absl::Condition(&holds), Clock::Real()->Now() + kSoon));
    return statuses_;
  }
  size_t count() {
    absl::MutexLock lock(&mu_);
    return statuses_.size();
  }
  std::vector<std::string> tenants() {
    absl::MutexLock lock(&mu_);
    return tenants_;
  }

 private:
  absl::Mutex mu_;
  std::vector<absl::Status> statuses_;
  std::vector<std::string> tenants_;
};

class EtcdJournalTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::EtcdCluster::IsInstalled())
      GTEST_SKIP() << "no etcd; to run it: deploy/install-packages.sh tests";
    cluster_ = std::make_unique<test::EtcdCluster>(1);
    client_ = std::make_unique<EtcdClient>(cluster_->endpoints(), Clock::Real());
    EtcdTransaction claim;
    claim.writes = {{.keys = EtcdKeys::One(layout_.Leader()), .value = "here"}};
    const auto claimed = client_->Commit(claim, Clock::Real()->Now() + kSoon);
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    journal_ = std::make_unique<EtcdJournal>(
        std::make_unique<EtcdWriter>(client_.get(), layout_, claimed->revision, EtcdIndex{}),
        [this] { return leads_.load(); }, Clock::Real(), &settled_);
  }

  static std::shared_ptr<const DirectoryChange> KeyOf(const std::string& tenant) {
    const auto change = std::make_shared<DirectoryChange>();
    change->kind = ChangeKind::kTenantKey;
    change->tenant = tenant;
    change->key.bytes[0] = 1;
    return change;
  }
  std::vector<std::string> Stored() {
    std::vector<std::string> tenants;
    const auto read = ReadEtcdState(*client_, layout_, Clock::Real()->Now() + kSoon,
                                    [&](const DirectoryChange& change) {
                                      if (change.kind == ChangeKind::kTenantKey)
                                        tenants.push_back(change.tenant);
                                      return absl::OkStatus();
                                    });
    EXPECT_TRUE(read.ok()) << read.status();
    return tenants;
  }

  const EtcdLayout layout_{"/ckv/"};
  std::atomic<bool> leads_{true};
  std::unique_ptr<test::EtcdCluster> cluster_;
  std::unique_ptr<EtcdClient> client_;
  Settled settled_;
  std::unique_ptr<EtcdJournal> journal_;
};

TEST_F(EtcdJournalTest, SettlesInOrderWhatIsInEtcd) {
  for (int i = 0; i < 300; ++i)
    ASSERT_TRUE(journal_->Submit(KeyOf("t" + std::to_string(1000 + i))).ok());
  for (const absl::Status& status : settled_.Await(300)) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Stored(), settled_.tenants());
  EXPECT_LT(journal_->stats().transaction_count, 300u) << "many changes are one transaction";
}

TEST_F(EtcdJournalTest, WaitsForAnEtcdThatIsStopped) {
  cluster_->Stop(0);
  ASSERT_TRUE(journal_->Submit(KeyOf("late")).ok());
  const auto tried = [&] { return journal_->stats().retry_count > 0; };
  const Instant end = Clock::Real()->Now() + kSoon;
  while (!tried() && Clock::Real()->Now() < end)
    Clock::Real()->WaitUntil(Clock::Real()->Now() + std::chrono::milliseconds(10));
  EXPECT_TRUE(tried());
  EXPECT_EQ(settled_.count(), 0u);
  cluster_->Continue(0);
  EXPECT_TRUE(settled_.Await(1)[0].ok());
  EXPECT_EQ(Stored(), std::vector<std::string>{"late"});
  // The write that was given up arrived later, and changed nothing.
  ASSERT_TRUE(journal_->Submit(KeyOf("next")).ok());
  EXPECT_TRUE(settled_.Await(2)[1].ok());
}

TEST_F(EtcdJournalTest, RefusesWhenItLeadsNoMore) {
  ASSERT_TRUE(journal_->Submit(KeyOf("mine")).ok());
  EXPECT_TRUE(settled_.Await(1)[0].ok());
  EtcdTransaction taken;
  taken.writes = {
      {.kind = EtcdWrite::Kind::kDelete, .keys = EtcdKeys::One(layout_.Leader()), .value = ""}};
  ASSERT_TRUE(client_->Commit(taken, Clock::Real()->Now() + kSoon).ok());
  ASSERT_TRUE(journal_->Submit(KeyOf("theirs")).ok());
  EXPECT_TRUE(absl::IsUnavailable(settled_.Await(2)[1]));
  EXPECT_TRUE(absl::IsUnavailable(journal_->Submit(KeyOf("later"))));
  EXPECT_EQ(Stored(), std::vector<std::string>{"mine"});
}

}  // namespace
}  // namespace ckv
