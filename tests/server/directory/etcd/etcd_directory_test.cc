// Goal: of several directories on a real etcd one leads, the others have what it made durable, and
// when it ends another leads with all of it.
// Method: several EtcdDirectory objects in one process, on etcd members that are killed, stopped,
// compacted and filled.

#include "server/directory/etcd/etcd_directory.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/directory/etcd/etcd_store.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

constexpr Duration kLong = std::chrono::seconds(30);

Instant In(Duration time) { return Clock::Real()->Now() + time; }

// Looks again and again until `holds`, which etcd decides.
template <typename Holds>
bool Becomes(Holds holds, Duration limit = kLong) {
  const Instant end = In(limit);
  while (!holds()) {
    if (Clock::Real()->Now() > end) return false;
    Clock::Real()->WaitUntil(In(std::chrono::milliseconds(5)));
  }
  return true;
}

class SharedDirectory {
 public:
  SharedDirectory(const std::vector<std::string>& endpoints, std::string address)
      : address_(std::move(address)),
        state_({.lease_ttl = EtcdDirectory::kLeaseTtlMin,
                .lease_ttl_min = EtcdDirectory::kLeaseTtlMin,
                .first_epoch = WallClockMilliseconds()}) {
    auto opened = EtcdDirectory::Open({endpoints, "/ckv/"}, Clock::Real(), &state_, In(kLong));
    EXPECT_TRUE(opened.ok()) << opened.status();
    etcd_ = *std::move(opened);
    etcd_->Start(address_);
  }

  DirectoryState& state() { return state_; }
  EtcdDirectory& etcd() { return *etcd_; }
  bool leads() const { return etcd_->report().leads; }
  const std::string& address() const { return address_; }

 private:
  const std::string address_;
  DirectoryState state_;
  std::unique_ptr<EtcdDirectory> etcd_;
};

class EtcdDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::EtcdCluster::IsInstalled())
      GTEST_SKIP() << "no etcd; to run it: deploy/install-packages.sh tests";
  }
  void StartWith(size_t etcd_count, size_t directory_count, size_t space_bytes = 0) {
    cluster_ = std::make_unique<test::EtcdCluster>(etcd_count, space_bytes);
    for (size_t i = 0; i < directory_count; ++i) Add();
  }
  SharedDirectory& Add() {
    const std::string address = "directory-" + std::to_string(directories_.size()) + ":1";
    directories_.push_back(std::make_unique<SharedDirectory>(cluster_->endpoints(), address));
    return *directories_.back();
  }
  SharedDirectory& Leader() {
    SharedDirectory* leader = nullptr;
    EXPECT_TRUE(Becomes([&] {
      for (const auto& one : directories_)
        if (one->leads()) leader = one.get();
      return leader != nullptr;
    }));
    return *leader;
  }
  SharedDirectory& Follower() {
    const SharedDirectory& leader = Leader();
    return directories_[0].get() != &leader ? *directories_[0] : *directories_[1];
  }
  static Corpus Made(const std::string& name, uint32_t seed = 1, size_t chunk_count = 2) {
    return test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(chunk_count, 2), seed)
        .Publish(name, "", {{{"h0"}}});
  }
  // A client tries again while none leads. Its first try may have been made.
  bool PublishAsClientsDo(const std::string& name) {
    return Becomes([&] {
      const auto version = Leader().state().Publish(Made(name), false, 0, nullptr, In(kLong));
      return version.ok() || absl::IsAlreadyExists(version.status());
    });
  }
  static bool Has(SharedDirectory& directory, const std::string& name) {
    return directory.state().Get(name, "").ok();
  }

  std::unique_ptr<test::EtcdCluster> cluster_;
  std::vector<std::unique_ptr<SharedDirectory>> directories_;
};

TEST_F(EtcdDirectoryTest, FollowersHaveWhatTheLeaderMadeDurable) {
  StartWith(1, 2);
  SharedDirectory& leader = Leader();
  SharedDirectory& follower = Follower();
  EXPECT_TRUE(Becomes([&] { return follower.etcd().report().leader == leader.address(); }));
  ASSERT_TRUE(leader.state().Publish(Made("a"), false, 0).ok());
  ASSERT_TRUE(leader.state().Publish(Made("b", 2), false, 0).ok());
  ASSERT_TRUE(leader.state().Drop("b", "").ok());
  // In several parts: a record beyond half a megabyte.
  ASSERT_TRUE(leader.state().Publish(Made("long", 3, 20'000), false, 0).ok());
  const auto key = leader.state().TenantKeyOf("t", true);
  ASSERT_TRUE(key.ok());
  EXPECT_TRUE(Becomes([&] { return follower.state().TenantKeyOf("t", false).value() == *key; }));
  EXPECT_EQ(**follower.state().Get("a", ""), **leader.state().Get("a", ""));
  EXPECT_EQ(**follower.state().Get("long", ""), **leader.state().Get("long", ""));
  EXPECT_FALSE(Has(follower, "b"));
  EXPECT_TRUE(absl::IsUnavailable(follower.state().Drop("a", "").status()));
}

TEST_F(EtcdDirectoryTest, AnotherLeadsWithEverythingAndContinuesLeases) {
  StartWith(1, 2);
  SharedDirectory& first = Leader();
  SharedDirectory& second = Follower();
  const Member member = {
      .id = {"h0"}, .role = MemberRole::kHolder, .control_address = "127.0.0.1:1", .epoch = {}};
  const auto grant = first.state().Register(member, Duration(0));
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_GE(grant->ttl, EtcdDirectory::kLeaseTtlMin);
  first.state().changes().SubmitMembers();
  const auto version = first.state().Publish(Made("a"), false, 0);
  ASSERT_TRUE(version.ok());
  first.etcd().End();
  ASSERT_TRUE(Becomes([&] { return second.leads(); }, std::chrono::seconds(3)));
  EXPECT_FALSE(first.leads());
  EXPECT_EQ((*second.state().Get("a", ""))->version, *version);
  Member same = member;
  same.epoch = grant->epoch;
  const auto again = second.state().Register(same, Duration(0), kInstantMax, false, true);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->epoch, grant->epoch);
  const auto next = second.state().Publish(Made("a", 2), true, *version);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GT(*next, *version);
  // The one that led follows now.
  EXPECT_TRUE(Becomes([&] { return (*first.state().Get("a", ""))->version == *next; }));
}

// The same process leads before and after. The write of the member is dropped with its connection.
TEST_F(EtcdDirectoryTest, FollowersHaveAMemberThatRegisteredWhileEtcdWasAway) {
  StartWith(1, 1);
  SharedDirectory& leader = Leader();
  const Member member = {
      .id = {"h0"}, .role = MemberRole::kHolder, .control_address = "127.0.0.1:1", .epoch = {}};
  // Epochs are reserved in etcd with the first member.
  Member first = member;
  first.id = {"first"};
  ASSERT_TRUE(leader.state().Register(first, Duration(0)).ok());
  leader.state().changes().SaveMembers(In(kLong));
  cluster_->Kill(0);
  const auto grant = leader.state().Register(member, Duration(0));
  ASSERT_TRUE(grant.ok()) << grant.status();
  leader.state().changes().SubmitMembers();
  ASSERT_TRUE(Becomes([&] { return !leader.leads(); }));
  // It still reports and answers reads while it cannot read the state again.
  const Instant begin = Clock::Real()->Now();
  EXPECT_TRUE(Becomes([&] { return !leader.etcd().report().mirror.ok(); }));
  EXPECT_FALSE(leader.etcd().Refusal().empty());
  EXPECT_LT(Clock::Real()->Now() - begin, 5 * EtcdMirror::kLookMax);
  EXPECT_EQ(leader.state().Members().size(), 2u);
  cluster_->Start(0);
  ASSERT_TRUE(Becomes([&] { return leader.leads() && leader.etcd().report().lead_count == 2; }));
  EXPECT_EQ(leader.state().Members().size(), 1u) << "as in etcd";
  Member same = member;
  same.epoch = grant->epoch;
  ASSERT_TRUE(leader.state().Register(same, Duration(0), kInstantMax, false, true).ok());
  leader.state().changes().SaveMembers(In(kLong));
  EXPECT_EQ(Add().state().Members().size(), 2u);
}

// Its end waits neither for etcd nor for a state that cannot be read.
TEST_F(EtcdDirectoryTest, ADirectoryEndsWhileEtcdIsAway) {
  StartWith(1, 1);
  SharedDirectory& leader = Leader();
  const Member member = {
      .id = {"h0"}, .role = MemberRole::kHolder, .control_address = "127.0.0.1:1", .epoch = {}};
  ASSERT_TRUE(leader.state().Register(member, Duration(0)).ok());
  cluster_->Kill(0);
  leader.state().changes().SubmitMembers();
  ASSERT_TRUE(Becomes([&] { return !leader.leads(); }));
  EXPECT_TRUE(Becomes([&] { return !leader.etcd().report().mirror.ok(); }));
  const Instant begin = Clock::Real()->Now();
  directories_.clear();
  EXPECT_LT(Clock::Real()->Now() - begin, std::chrono::seconds(10));
}

TEST_F(EtcdDirectoryTest, AnEndSavesTheMembersFirst) {
  StartWith(1, 2);
  SharedDirectory& leader = Leader();
  SharedDirectory& follower = Follower();
  const Member member = {
      .id = {"h0"}, .role = MemberRole::kHolder, .control_address = "127.0.0.1:1", .epoch = {}};
  ASSERT_TRUE(leader.state().Register(member, Duration(0)).ok());
  leader.etcd().End();
  EXPECT_TRUE(Becomes([&] { return follower.state().Members().size() == 1; }));
}

TEST_F(EtcdDirectoryTest, AReadAtAFollowerSeesWhatWasAcknowledged) {
  StartWith(1, 2);
  SharedDirectory& leader = Leader();
  SharedDirectory& follower = Follower();
  for (uint32_t i = 0; i < 50; ++i) {
    const std::string name = "c" + std::to_string(i);
    ASSERT_TRUE(leader.state().Publish(Made(name, i + 1), false, 0).ok());
    EXPECT_TRUE(follower.etcd().CatchUp(In(kLong)).ok());
    EXPECT_TRUE(Has(follower, name));
  }
  // Without etcd nothing is acknowledged either. That it is away, and not in an election, is clear
  // after a while.
  cluster_->Stop(0);
  const Instant begin = Clock::Real()->Now();
  EXPECT_TRUE(absl::IsUnavailable(follower.etcd().CatchUp(In(kLong))));
  EXPECT_TRUE(Becomes([&] { return follower.etcd().CatchUp(In(kLong)).ok(); }));
  EXPECT_GE(Clock::Real()->Now() - begin, EtcdDirectory::kSilenceMax);
  EXPECT_TRUE(Has(follower, "c49"));
  cluster_->Continue(0);
}

TEST_F(EtcdDirectoryTest, ACompactionUnderTheWatchLosesNothing) {
  StartWith(1, 2);
  SharedDirectory& leader = Leader();
  SharedDirectory& follower = Follower();
  ASSERT_TRUE(leader.state().Publish(Made("kept"), false, 0).ok());
  ASSERT_TRUE(leader.state().Publish(Made("gone", 2), false, 0).ok());
  ASSERT_TRUE(Becomes([&] { return Has(follower, "gone"); }));
  // The follower hears nothing while the history goes: its place in it is compacted away.
  cluster_->Stop(0);
  cluster_->Continue(0);
  EtcdClient client(cluster_->endpoints(), Clock::Real());
  ASSERT_TRUE(leader.state().Drop("gone", "").ok());
  ASSERT_TRUE(leader.state().Publish(Made("new", 3), false, 0).ok());
  ASSERT_TRUE(client.Compact(leader.etcd().report().revision, In(kLong)).ok());
  // A directory that starts now reads the state as it is.
  SharedDirectory& late = Add();
  EXPECT_TRUE(Has(late, "new"));
  EXPECT_FALSE(Has(late, "gone"));
  EXPECT_TRUE(Becomes([&] { return Has(follower, "new") && !Has(follower, "gone"); }));
}

TEST_F(EtcdDirectoryTest, OneOfThreeMembersMayBeStopped) {
  StartWith(3, 2);
  for (size_t member = 0; member < 3; ++member) {
    cluster_->Stop(member);
    const std::string name = "while-" + std::to_string(member);
    EXPECT_TRUE(PublishAsClientsDo(name)) << "one of the three is etcd's own leader";
    cluster_->Continue(member);
    EXPECT_TRUE(Becomes([&] { return Has(Follower(), name); }));
  }
}

TEST_F(EtcdDirectoryTest, WithoutAMajorityNoneLeadsAndThenOneDoes) {
  StartWith(3, 2);
  SharedDirectory& leader = Leader();
  ASSERT_TRUE(leader.state().Publish(Made("before"), false, 0).ok());
  cluster_->Kill(0);
  cluster_->Kill(1);
  EXPECT_TRUE(Becomes([&] { return !leader.leads(); }));
  EXPECT_TRUE(absl::IsUnavailable(leader.state().Publish(Made("x"), false, 0).status()));
  EXPECT_TRUE(Has(leader, "before")) << "reads go on";
  cluster_->Start(0);
  cluster_->Start(1);
  SharedDirectory& next = Leader();
  EXPECT_TRUE(next.state().Publish(Made("after", 2), false, 0).ok());
  EXPECT_TRUE(Has(next, "before"));
}

TEST_F(EtcdDirectoryTest, WithoutSpaceChangesAreRefusedAndItStillLeads) {
  StartWith(1, 1, /*space_bytes=*/size_t{4} << 20);
  SharedDirectory& leader = Leader();
  ASSERT_TRUE(leader.state().Publish(Made("kept"), false, 0).ok());
  absl::Status refused;
  for (uint32_t i = 0; i < 100 && refused.ok(); ++i) {
    refused = leader.state().Publish(Made("c" + std::to_string(i), i, 5'000), false, 0).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(leader.etcd().Refusal(), "") << "health names it";
  EXPECT_TRUE(absl::IsResourceExhausted(leader.state().Publish(Made("kept", 2), true, 0).status()));
  EXPECT_EQ((*leader.state().Get("kept", ""))->chunks, Made("kept").chunks);
  // Longer than a lease in etcd that is not renewed.
  const Instant end = In(2 * LeaderElection::kLeaseTtl);
  EXPECT_FALSE(Becomes([&] { return !leader.leads(); }, end - Clock::Real()->Now()));
}

TEST(EtcdStoreTest, ReadsAddressesAndName) {
  const auto store = EtcdStore::Parse("etcd://10.0.0.1:2379,[::1]:2379/fleet-a");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(store->endpoints, (std::vector<std::string>{"10.0.0.1:2379", "[::1]:2379"}));
  EXPECT_EQ(store->prefix, "/fleet-a/");
  EXPECT_EQ(EtcdStore::Parse("etcd://a:1")->prefix, "/ckv/");
  for (const char* bad : {"", "10.0.0.1:2379", "etcd://", "etcd://a", "etcd://a:0", "etcd://a:1,",
                          "etcd://a:1/", "etcd://a:1/b/c", "etcd://a:1/b c", "http://a:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(EtcdStore::Parse(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace ckv
