// Goal: a watch of several directories is at the one that leads, and continues at another at once
// when its directory ends. Method: fake directories on loopback.

#include "client/grpc/watch_stub.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "tests/client/grpc/fake_directory.h"
#include "tests/support/soon.h"

namespace ckv {
namespace {

using test::FakeDirectory;

// A watch that counts how often it has seen the whole state, and how often it broke.
class Counted {
 public:
  explicit Counted(const std::string& addresses)
      : watch_(
            {.addresses = addresses, .tenant = ""},
            [this](std::string_view corpus) {
              absl::MutexLock lock(&mu_);
              if (corpus.empty()) ++synced_count_;
            },
            [this](const absl::Status&) {
              absl::MutexLock lock(&mu_);
              ++break_count_;
            }) {}

  bool AwaitSynced(int count) { return Await(synced_count_, count); }
  bool AwaitBreak(int count) { return Await(break_count_, count); }
  int break_count() {
    absl::MutexLock lock(&mu_);
    return break_count_;
  }

 private:
  bool Await(const int& counted, int count) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&] { return counted >= count; };
    return Clock::Real()->Await(mu_, absl::Condition(&reached), test::Soon());
  }

  absl::Mutex mu_;
  int synced_count_ = 0;
  int break_count_ = 0;
  WatchStub watch_;  // last: its thread uses the others
};

TEST(WatchStub, IsAtTheLeaderThatAFollowerNames) {
  FakeDirectory a, b, c;
  a.Follow(c.address());
  b.Follow(c.address());
  c.Lead();
  Counted watch(absl::StrCat(a.address(), ",", b.address(), ",", c.address()));
  EXPECT_TRUE(watch.AwaitSynced(1));
  EXPECT_EQ(c.call_count(), 1);
  EXPECT_EQ(b.call_count(), 0);
  EXPECT_EQ(watch.break_count(), 0);
}

TEST(WatchStub, MovesWhenAnotherLeads) {
  FakeDirectory a, b;
  a.Report("");
  b.Report("");
  Counted watch(absl::StrCat(a.address(), ",", b.address()));
  EXPECT_TRUE(watch.AwaitSynced(1));  // a follower serves it until one leads
  EXPECT_EQ(a.call_count(), 1);
  b.Lead();
  a.Follow(b.address());
  EXPECT_TRUE(watch.AwaitSynced(2));
  EXPECT_EQ(b.call_count(), 1);
  EXPECT_EQ(watch.break_count(), 0);
}

TEST(WatchStub, ContinuesAtAnotherWhenTheLeaderIsKilled) {
  FakeDirectory a, b;
  a.Lead();
  b.Follow(a.address());
  Counted watch(absl::StrCat(a.address(), ",", b.address()));
  EXPECT_TRUE(watch.AwaitSynced(1));
  b.Lead();
  a.Kill();
  EXPECT_TRUE(watch.AwaitSynced(2));
  EXPECT_EQ(b.call_count(), 1);
}

TEST(WatchStub, ReportsThatAllAreAway) {
  FakeDirectory a, b;
  a.Lead();
  b.Follow(a.address());
  Counted watch(absl::StrCat(a.address(), ",", b.address()));
  EXPECT_TRUE(watch.AwaitSynced(1));
  b.Kill();
  a.Kill();
  EXPECT_TRUE(watch.AwaitBreak(1));
  a.Start();
  EXPECT_TRUE(watch.AwaitSynced(2));
  EXPECT_EQ(watch.break_count(), 1);
}

}  // namespace
}  // namespace ckv
