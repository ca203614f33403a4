// Goal: a call to several directories finds the one that leads, and no call fails because one of
// them ends, stops or has no leader for a while. Method: fake directories on loopback, which count
// their calls; a test changes them at a call, never after a time.

#include "client/grpc/directory_caller.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/grpc/fake_directory.h"
#include "tests/support/soon.h"

namespace ckv {
namespace {

using test::FakeDirectory;

// A call that any directory answers.
absl::Status Read(DirectoryCaller& caller, Instant deadline = test::Soon(),
                  CallEnd* end = nullptr) {
  v1::GetCorpusRequest request;
  request.set_name("docs");
  v1::GetCorpusReply reply;
  return caller.Call(&DirectoryCaller::Stub::GetCorpus, "GetCorpus", request, &reply, deadline,
                     end);
}

// A call that needs the leader.
absl::Status Drop(DirectoryCaller& caller, Instant deadline = test::Soon(),
                  CallEnd* end = nullptr) {
  v1::DropCorpusRequest request;
  request.set_name("docs");
  v1::DropCorpusReply reply;
  return caller.Call(&DirectoryCaller::Stub::DropCorpus, "DropCorpus", request, &reply, deadline,
                     end);
}

std::string List(const std::vector<std::string>& addresses) {
  std::string list;
  for (const std::string& address : addresses)
    absl::StrAppend(&list, list.empty() ? "" : ",", address);
  return list;
}

TEST(DirectoryCaller, FindsTheLeaderByAFollowersAnswer) {
  FakeDirectory a, b, c;
  a.Follow(c.address());
  b.Follow(c.address());
  c.Lead();
  DirectoryCaller caller(List({a.address(), b.address(), c.address()}), Clock::Real());
  CallEnd end;
  EXPECT_TRUE(Drop(caller, test::Soon(), &end).ok());
  EXPECT_EQ(end.address, c.address());
  EXPECT_FALSE(end.was_repeated);  // a follower refused it
  c.SetCorpus("docs");
  EXPECT_TRUE(Drop(caller).ok());
  EXPECT_EQ(a.call_count(), 1);
  EXPECT_EQ(b.call_count(), 0);
  EXPECT_EQ(c.call_count(), 2);
}

TEST(DirectoryCaller, FindsALeaderThatIsNotInItsList) {
  FakeDirectory a, b, leader;
  a.Follow(leader.address());
  b.Follow(leader.address());
  leader.Lead();
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  EXPECT_TRUE(Drop(caller).ok());
  EXPECT_EQ(leader.call_count(), 1);
}

TEST(DirectoryCaller, IgnoresALeaderWithoutAnAddress) {
  FakeDirectory a, b;
  a.Follow("no address");
  b.Lead();
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  EXPECT_TRUE(Drop(caller).ok());
}

TEST(DirectoryCaller, TakesAFollowersAnswerIfTheLeaderGivesNone) {
  FakeDirectory a;
  a.Follow("127.0.0.1:1");  // nobody listens there
  DirectoryCaller caller(List({a.address(), "127.0.0.1:2"}), Clock::Real());
  EXPECT_TRUE(Read(caller).ok());
  EXPECT_EQ(a.call_count(), 1);
}

TEST(DirectoryCaller, ReadsAtTheLeaderThatAFollowerNames) {
  FakeDirectory a, b;
  a.Follow(b.address());
  b.Lead();
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  EXPECT_TRUE(Read(caller).ok());
  EXPECT_EQ(b.call_count(), 1) << "a follower may be behind";
  EXPECT_TRUE(Read(caller).ok());
  EXPECT_EQ(a.call_count(), 1);
  EXPECT_EQ(b.call_count(), 2);
}

TEST(DirectoryCaller, QueriesTheLeaderForWhatAFollowerLacks) {
  FakeDirectory a, b;
  a.Follow(b.address());
  a.SetCorpus("");
  b.Lead();
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  EXPECT_TRUE(Read(caller).ok());
  EXPECT_EQ(a.call_count(), 1);
}

TEST(DirectoryCaller, TheLeadersErrorIsFinal) {
  FakeDirectory a, b;
  a.Lead();
  a.SetCorpus("");
  b.Follow(a.address());
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  const absl::Status status = Read(caller);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(status.message(),
            absl::StrCat("directory ", a.address(), ": GetCorpus: no such corpus"));
  EXPECT_EQ(a.call_count(), 1);
  EXPECT_EQ(b.call_count(), 0);
}

TEST(DirectoryCaller, AnErrorWithoutALeaderIsFinal) {
  FakeDirectory a, b;
  a.Report("");
  a.SetCorpus("");
  b.Report("");
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  EXPECT_TRUE(absl::IsNotFound(Read(caller)));
  EXPECT_EQ(a.call_count(), 1);
  EXPECT_EQ(b.call_count(), 0);
}

TEST(DirectoryCaller, NoReadFailsWhenTheLeaderIsKilled) {
  constexpr int kThreadCount = 8;
  constexpr int kReadCount = 100;
  FakeDirectory a, b, c;
  a.Lead();
  b.Follow(a.address());
  c.Follow(a.address());
  DirectoryCaller caller(List({a.address(), b.address(), c.address()}), Clock::Real());
  std::vector<absl::Status> failures(kThreadCount);
  std::vector<std::thread> readers;
  for (int i = 0; i < kThreadCount; ++i) {
    readers.emplace_back([&, i] {
      for (int read = 0; read < kReadCount; ++read) failures[i].Update(Read(caller));
    });
  }
  EXPECT_TRUE(a.AwaitCalls(kThreadCount * kReadCount / 4));
  a.Kill();  // ends those that are in progress, too
  for (std::thread& reader : readers) reader.join();
  for (const absl::Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
  EXPECT_LT(a.call_count(), kThreadCount * kReadCount);
}

TEST(DirectoryCaller, WaitsForALeaderThatIsRestarted) {
  FakeDirectory a, b;
  a.Lead();
  b.Follow(a.address());
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  ASSERT_TRUE(Read(caller).ok());
  a.Kill();
  std::thread restart([&] {
    EXPECT_TRUE(b.AwaitCalls(3));  // three rounds
    a.Start();
  });
  const absl::Status status = Drop(caller);
  restart.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(DirectoryCaller, ASilentDirectoryCostsOneTry) {
  FakeDirectory a, b;
  a.BeSilent();
  b.Follow(a.address());  // as long as the silent one has its lease
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  const Instant begin = Clock::Real()->Now();
  EXPECT_TRUE(Read(caller).ok());
  EXPECT_GE(Clock::Real()->Now() - begin, kTryTimeout);
  EXPECT_TRUE(Read(caller).ok());
  EXPECT_EQ(a.call_count(), 1);
  EXPECT_EQ(b.call_count(), 2);
}

TEST(DirectoryCaller, ASilentDirectoryTakesHalfOfAShortCall) {
  FakeDirectory a, b;
  a.BeSilent();
  b.Lead();
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  CallEnd end;
  EXPECT_TRUE(Drop(caller, test::Soon(kTryTimeout), &end).ok());
  EXPECT_TRUE(end.was_repeated);  // the silent one may have done it
  EXPECT_EQ(a.call_count(), 1);
}

TEST(DirectoryCaller, WaitsUntilOneLeads) {
  FakeDirectory a, b;
  a.Report("");
  b.Report("");
  // Before its fourth call there are three pauses.
  b.SetHook([&](const grpc::ServerContext&, int call) {
    if (call == 4) b.Lead();
    return grpc::Status::OK;
  });
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  const Instant begin = Clock::Real()->Now();
  CallEnd end;
  const absl::Status status = Drop(caller, test::Soon(), &end);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GE(Clock::Real()->Now() - begin, 3 * kRoundPause);
  EXPECT_EQ(end.address, b.address());
  EXPECT_EQ(b.call_count(), 4);
  EXPECT_FALSE(end.was_repeated);
}

TEST(DirectoryCaller, AnUnavailableLeaderIsTriedAgain) {
  FakeDirectory a, b;
  a.Lead();
  b.Follow(a.address());
  a.SetHook([](const grpc::ServerContext&, int call) {
    return call > 1 ? grpc::Status::OK
                    : grpc::Status(grpc::StatusCode::UNAVAILABLE, "this server is draining");
  });
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  CallEnd end;
  EXPECT_TRUE(Drop(caller, test::Soon(), &end).ok());
  EXPECT_TRUE(end.was_repeated);
  EXPECT_EQ(a.call_count(), 2);
}

TEST(DirectoryCaller, ALongReplyArrivesAtLast) {
  FakeDirectory a, b;
  a.Lead();
  b.Follow(a.address());
  // A reply that takes longer than a first try.
  a.SetHook([](const grpc::ServerContext& context, int) {
    const Clock& clock = *Clock::Real();
    const Duration left = DeadlineOf(context, clock, kControlTimeoutMax) - clock.Now();
    return left > kTryTimeout * 3 / 2
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "too slow");
  });
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  const absl::Status status = Drop(caller);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(a.call_count(), 2);
}

TEST(DirectoryCaller, EndsByTheDeadlineIfAllAreAway) {
  FakeDirectory a, b;
  a.Kill();
  b.Kill();
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  const Instant deadline = test::Soon(std::chrono::milliseconds(400));
  const absl::Status status = Read(caller, deadline);
  EXPECT_GE(Clock::Real()->Now(), deadline);
  EXPECT_LT(Clock::Real()->Now(), deadline + std::chrono::seconds(2));
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::EndsWith("; 2 directories were tried"));
}

TEST(DirectoryCaller, EndsByTheDeadlineIfNoneLeads) {
  FakeDirectory a, b;
  a.Report("");
  b.Report("");
  DirectoryCaller caller(List({a.address(), b.address()}), Clock::Real());
  const Instant deadline = test::Soon(std::chrono::milliseconds(400));
  const absl::Status status = Drop(caller, deadline);
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LT(Clock::Real()->Now(), deadline + std::chrono::seconds(2));
  EXPECT_GE(a.call_count(), 2);
}

TEST(DirectoryCaller, ASingleAddressIsTriedOnce) {
  FakeDirectory alone;
  alone.SetHook([](const grpc::ServerContext&, int) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "its disk fails");
  });
  DirectoryCaller caller(alone.address(), Clock::Real());
  const absl::Status status = Drop(caller);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message(),
            absl::StrCat("directory ", alone.address(), ": DropCorpus: its disk fails"));
  EXPECT_EQ(alone.call_count(), 1);
  alone.Kill();
  // A first call may find that the connection broke: channels to one address share it.
  DirectoryCaller later(alone.address(), Clock::Real());
  std::string seen;
  for (const Instant end = test::Soon(); Clock::Real()->Now() < end;) {
    seen = std::string(Drop(later).message());
    if (absl::StrContains(seen, "cannot connect")) break;
  }
  EXPECT_THAT(seen, testing::HasSubstr("cannot connect"));
}

TEST(DirectoryCaller, ConvertsTheStatusOfASingleAddressAsChosen) {
  FakeDirectory alone;
  alone.SetHook([](const grpc::ServerContext&, int) {
    return grpc::Status(grpc::StatusCode::CANCELLED, "stopping");
  });
  DirectoryCaller plain(alone.address(), Clock::Real());
  EXPECT_TRUE(absl::IsCancelled(Drop(plain)));
  DirectoryCaller peer(alone.address(), Clock::Real(), {.convert = FromPeer});
  EXPECT_TRUE(absl::IsUnavailable(Drop(peer)));
}

TEST(DirectoryCaller, RefusesAMalformedList) {
  for (const char* list : {"127.0.0.1:1,", "127.0.0.1:1,127.0.0.1:1", "127.0.0.1:1,nowhere",
                           "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9"}) {
    DirectoryCaller caller(list, Clock::Real());
    const absl::Status status = Read(caller);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << list << ": " << status;
  }
}

}  // namespace
}  // namespace ckv
