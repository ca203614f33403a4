// Goal: while replicas can answer, no call waits for a session. A session that is not needed any
// more is closed. Method: real holders in this process; a request for a session waits until the
// test lets it go on.

#include "client/holders/session_opener.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/holders/link_table.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::MakeTestCorpus;
using test::PutChunk;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

constexpr uint32_t kRows = 8;

LinkOptions OptionsOver(Fabric* fabric) {
  LinkOptions options;
  options.requester = "another";
  options.clock = Clock::Real();
  options.fabrics = {fabric};
  options.shape = SmallShape();
  options.connect_timeout = std::chrono::hours(1);
  return options;
}

// Requests for sessions with one holder wait here, until their deadline.
class Door {
 public:
  void Shut(std::string holder) {
    absl::MutexLock lock(&mu_);
    holder_ = std::move(holder);
  }
  void Open() { Shut(""); }
  bool waits() const {
    absl::MutexLock lock(&mu_);
    return waits_;
  }
  absl::Status Pass(const std::string& holder, Instant deadline) {
    absl::MutexLock lock(&mu_);
    if (holder != holder_) return absl::OkStatus();
    waits_ = true;
    const auto opened = [this, &holder]()
                            ABSL_NO_THREAD_SAFETY_ANALYSIS { return holder != holder_; };
    // A busy machine makes the other holder late, and then a call needs this one.
    const bool passes = Clock::Real()->Await(mu_, absl::Condition(&opened), deadline);
    return passes ? absl::OkStatus() : absl::DeadlineExceededError("the door is shut");
  }

 private:
  mutable absl::Mutex mu_;
  std::string holder_ ABSL_GUARDED_BY(mu_);
  bool waits_ ABSL_GUARDED_BY(mu_) = false;
};

// Both holders have all chunks.
struct SessionOpenerTest : testing::Test {
  SessionOpenerTest() {
    for (size_t i = 0; i < 2; ++i) Start(i);
    fleet.Load("c", corpus, {0, 0});
    fleet.Lease("c", corpus, 1, {0, 1});
    fleet.set_on_session([this](const std::string& holder, Instant deadline) {
      return door.Pass(holder, deadline);
    });
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    options.lane_shape = SmallShape();
    requester = *Requester::Create(options, &fleet, &fleet);
    call.corpus = *requester->Resolve("c", "", Soon());
    call.q = {q.data(), kRows, 96};
    call.wire = PartialDtype::kF32;
    right = Attended();
  }
  ~SessionOpenerTest() override { door.Open(); }

  void Start(size_t i, uint32_t session_count_max = 256) {
    fleet.StartHolder(i, size_t{64} << 20, session_count_max, [this](Holder& holder) {
      for (const auto& chunk : corpus.chunks)
        EXPECT_TRUE(PutChunk(holder.store(), corpus.geometry, chunk).ok());
    });
  }
  Answer Attended() {
    Answer answer(kRows, 64);
    call.deadline = Soon();
    const absl::Status status = requester->Attend(call, answer.View(), nullptr);
    EXPECT_TRUE(status.ok()) << status;
    return answer;
  }
  // Calls until `done` returns true.
  void AttendUntil(const std::function<bool()>& done) {
    for (const Instant end = Soon(); !done();) {
      ASSERT_LT(Clock::Real()->Now(), end);
      ASSERT_TRUE(Attended().SameBits(right));
    }
  }
  uint64_t RowsOf(size_t holder) { return fleet.holder(holder).stats().query_row_count; }

  Door door;
  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {40, 50}, 3);
  std::mt19937 rng{3};
  std::vector<uint16_t> q = RandomBf16(kRows * 96, rng);
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  TestFleet fleet{{fabric.get()}};
  std::unique_ptr<Requester> requester;
  AttendCall call;
  Answer right{kRows, 64};
};

TEST_F(SessionOpenerTest, ACallDoesNotWaitForTheFirstSessionWithAReplica) {
  const size_t other = RowsOf(0) > 0 ? 1 : 0;
  door.Shut(TestFleet::Name(other).name);
  const Instant begin = Clock::Real()->Now();
  AttendUntil([&] { return door.waits(); });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Attended().SameBits(right));
  EXPECT_EQ(RowsOf(other), 0u);
  const bool in_time = Clock::Real()->Now() - begin < SessionOpening::kTimeout / 2;
  door.Open();
  AttendUntil([&] { return RowsOf(other) > 0; });
  if (in_time) {
    EXPECT_EQ(requester->Stats().failover_count, 0u);
  }
}

TEST_F(SessionOpenerTest, ACallDoesNotWaitForAHolderThatRestarted) {
  AttendUntil([&] { return RowsOf(0) > 0 && RowsOf(1) > 0; });
  fleet.StopHolder(1);
  door.Shut("h1");
  Start(1);
  AttendUntil([&] { return door.waits(); });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Attended().SameBits(right));
  EXPECT_EQ(RowsOf(1), 0u);
  door.Open();
  AttendUntil([&] { return RowsOf(1) > 0; });
}

// The first attempt to open a session finds out. Then calls avoid it, for a second.
TEST_F(SessionOpenerTest, AHolderThatIsGoneIsTriedOnce) {
  AttendUntil([&] { return RowsOf(0) > 0 && RowsOf(1) > 0; });
  fleet.StopHolder(1);
  const int sessions = fleet.session_calls();
  AttendUntil([&] { return fleet.session_calls() > sessions; });
  const Instant begin = Clock::Real()->Now();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Attended().SameBits(right));
  if (Clock::Real()->Now() - begin < HolderAvoidance::kPauseMin / 2) {
    // One more on behalf of a second address.
    EXPECT_LE(fleet.session_calls(), sessions + 2);
  }
}

TEST_F(SessionOpenerTest, AHolderWithoutASessionLeftIsNoHindrance) {
  AttendUntil([&] { return RowsOf(0) > 0 && RowsOf(1) > 0; });
  fleet.StopHolder(1);
  Start(1, /*session_count_max=*/1);
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  const LinkOptions options = OptionsOver(fabric.get());
  SessionOpening taken(
      {&options, &peers, *peers.Find(TestFleet::Name(1)), corpus.geometry, "", {}, {}});
  taken.Run();
  EXPECT_EQ(fleet.holder(1).stats().session_count, 1u);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Attended().SameBits(right));
  EXPECT_EQ(RowsOf(1), 0u);
  taken.Abandon();
}

// A call over two groups of chunks uses h0 for the first. If h0's lane then breaks, the second
// group leaves it as it is: the call's first group would have no lane.
TEST_F(SessionOpenerTest, ALinkInUseIsNotOpenedAgain) {
  fleet.StartHolder(2);
  fleet.Lease("c", corpus, 2, {1});
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  LinkOptions options = OptionsOver(fabric.get());  // it outlives the opener
  SessionOpener opener(Clock::Real());
  options.opener = &opener;
  LinkTable table(&options, &peers);
  const auto published = *view.Resolve("c", "", Soon());
  LinkTable::ChunkLinks* links = *table.LinksFor(published);
  ASSERT_EQ(links->groups.size(), 2u);
  for (HolderLink* const link : links->links) ASSERT_TRUE(table.EnsureUp(*link, Soon()).ok());
  links = *table.LinksFor(published);
  for (ReplicaGroup& group : links->groups) group.chosen = {};
  HolderLink& used = table.Choose(*links, 0);
  ASSERT_TRUE(table.EnsureUp(used, Soon()).ok());
  used.peer().epoch.store(used.epoch().value + 1);  // as the directory reports it
  EXPECT_EQ(&table.Choose(*links, 1), &used);
  EXPECT_TRUE(used.is_up());
  // The next attempt does not use it.
  links = *table.LinksFor(published);
  for (ReplicaGroup& group : links->groups) group.chosen = {};
  EXPECT_NE(&table.Choose(*links, 1), &used);
  EXPECT_FALSE(used.is_up());
}

// Holders that open sessions, and then answer no more.
class SilentHolders final : public HolderControlFactory {
 public:
  explicit SilentHolders(TestFleet* fleet) : fleet_(*fleet) {}
  absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member& member) override {
    auto control = fleet_.Connect(member);
    if (!control.ok()) return control;
    return std::make_unique<Control>(*std::move(control));
  }

 private:
  struct Control final : HolderControl {
    explicit Control(std::unique_ptr<HolderControl> to) : holder(std::move(to)) {}
    absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer, Instant end) override {
      return holder->OpenSession(offer, end);
    }
    absl::Status CloseSession(SessionId session, Instant end) override {
      return holder->CloseSession(session, end);
    }
    absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
        SessionId, std::span<const ChunkId>, Instant) override {
      return absl::DeadlineExceededError("silent");
    }
    const std::unique_ptr<HolderControl> holder;
  };
  TestFleet& fleet_;
};

// Orders without a requester.
struct SessionOpeningTest : testing::Test {
  SessionOpeningTest() {
    fleet.StartHolder(0);
    fleet.Load("c", corpus, {0, 0});
  }
  SessionOrder Order() {
    return {&options, &peers, *peers.Find(TestFleet::Name(0)), corpus.geometry, "", ids, {}};
  }
  // Opens the session of a lane that is still in use when an order replaces it.
  LinkSession Opened() {
    SessionOpening opening(Order());
    opening.Run();
    auto opened = opening.Take();
    EXPECT_TRUE(opened && opened->ok());
    return **std::move(opened);
  }
  uint64_t SessionCount() { return fleet.holder(0).stats().session_count; }

  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {3, 4}, 1);
  std::vector<ChunkId> ids = {corpus.chunks[0].info.id, corpus.chunks[1].info.id};
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  TestFleet fleet{{fabric.get()}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  LinkOptions options = OptionsOver(fabric.get());
};

TEST_F(SessionOpeningTest, TheSessionHasItsHandles) {
  SessionOpening opening(Order());
  EXPECT_FALSE(opening.Take());
  opening.Run();
  auto opened = opening.Take();
  ASSERT_TRUE(opened);
  ASSERT_TRUE(opened->ok()) << opened->status();
  EXPECT_TRUE((*opened)->is_up());
  EXPECT_EQ((*opened)->handles.size(), 2u);
  EXPECT_FALSE(opening.Take());
  EXPECT_EQ(SessionCount(), 1u);
  (*opened)->Close(*options.clock);
  EXPECT_EQ(SessionCount(), 0u);
}

// The holder may lack a chunk that its corpus has: that is an error of the call that needs it.
TEST_F(SessionOpeningTest, AChunkThatIsNotThereIsLeftOut) {
  ids.push_back({});
  LinkSession session = Opened();
  EXPECT_EQ(session.handles.size(), 2u);
  session.Close(*options.clock);
}

TEST_F(SessionOpeningTest, AnAbandonedSessionIsClosed) {
  SessionOpening before(Order());
  before.Abandon();
  before.Run();
  EXPECT_EQ(fleet.session_calls(), 0);
  SessionOpening after(Order());
  after.Run();
  EXPECT_EQ(SessionCount(), 1u);
  after.Abandon();
  EXPECT_EQ(SessionCount(), 0u);
  SessionOpening during(Order());
  fleet.set_on_session([&](const std::string&, Instant) {
    during.Abandon();
    return absl::OkStatus();
  });
  during.Run();
  EXPECT_EQ(fleet.session_calls(), 2);
  EXPECT_EQ(SessionCount(), 0u);
}

TEST_F(SessionOpeningTest, TheOldSessionIsClosed) {
  SessionOrder order = Order();
  order.old = Opened();
  EXPECT_EQ(SessionCount(), 1u);
  {
    SessionOpening opening(std::move(order));
    opening.Run();
    EXPECT_EQ(SessionCount(), 1u);
    opening.Abandon();
  }
  order = Order();
  order.old = Opened();
  { SessionOpening never_run(std::move(order)); }
  // Only its lane is dropped, which the holder notices.
  for (const Instant end = Soon(); SessionCount() > 0;) ASSERT_LT(Clock::Real()->Now(), end);
}

TEST_F(SessionOpeningTest, OneThatRunsIsAwaited) {
  SessionOpening opening(Order());
  EXPECT_FALSE(opening.AwaitIfRunning(Soon())) << "it waits for nothing that has not begun";
  absl::Mutex mu;
  mu.Lock();
  fleet.set_on_session([&](const std::string&, Instant) {
    absl::MutexLock wait(&mu);
    return absl::OkStatus();
  });
  std::thread runs([&] { opening.Run(); });
  while (fleet.session_calls() == 0) std::this_thread::yield();
  EXPECT_FALSE(opening.AwaitIfRunning(Soon(std::chrono::milliseconds(10))));
  EXPECT_FALSE(opening.Take().has_value());
  mu.Unlock();
  EXPECT_TRUE(opening.AwaitIfRunning(Soon()));
  runs.join();
  auto opened = opening.Take();
  ASSERT_TRUE(opened.has_value() && opened->ok());
  (*opened)->Close(*options.clock);
}

TEST_F(SessionOpeningTest, AHolderThatIsSilentAfterItsSessionIsNotReached) {
  SilentHolders silent(&fleet);
  PeerTable table(&view, &silent);
  HolderPeer* const peer = *table.Find(TestFleet::Name(0));
  SessionOpening opening({&options, &table, peer, corpus.geometry, "", ids, {}});
  opening.Run();
  const auto opened = opening.Take();
  ASSERT_TRUE(opened);
  EXPECT_TRUE(absl::IsDeadlineExceeded(opened->status())) << opened->status();
  EXPECT_GT(peer->avoidance.until(), Clock::Real()->Now());
  EXPECT_EQ(SessionCount(), 0u);
}

TEST_F(SessionOpeningTest, AHolderThatIsNotReachedIsAvoided) {
  fleet.StopHolder(0);
  SessionOpening opening(Order());
  opening.Run();
  auto opened = opening.Take();
  ASSERT_TRUE(opened);
  EXPECT_TRUE(absl::IsUnavailable(opened->status())) << opened->status();
  const int sessions = fleet.session_calls();
  HolderPeer& peer = **peers.Find(TestFleet::Name(0));
  const Instant until = peer.avoidance.until();
  EXPECT_GT(until, Clock::Real()->Now());
  // Another link's order, which waited meanwhile.
  SessionOpening another(Order());
  another.Run();
  EXPECT_TRUE(absl::IsUnavailable(another.Take()->status()));
  EXPECT_EQ(fleet.session_calls(), sessions);
  EXPECT_EQ(peer.avoidance.until(), until);
}

TEST_F(SessionOpeningTest, AFullQueueRefuses) {
  absl::Mutex mu;
  fleet.set_on_session([&](const std::string&, Instant) {
    absl::MutexLock wait(&mu);
    return absl::OkStatus();
  });
  SessionOpener opener(Clock::Real());
  std::vector<std::shared_ptr<SessionOpening>> begun;
  mu.Lock();
  // One of them may be under way.
  for (size_t i = 0; i <= SessionOpener::kQueueMax; ++i) {
    begun.push_back(opener.Begin(Order()));
    if (begun.back() == nullptr) break;
  }
  EXPECT_GE(begun.size(), SessionOpener::kQueueMax);
  for (int i = 0; i < 2; ++i) begun.push_back(opener.Begin(Order()));
  EXPECT_EQ(begun.back(), nullptr);
  for (const auto& opening : begun) {
    if (opening != nullptr) opening->Abandon();
  }
  mu.Unlock();
}

}  // namespace
}  // namespace ckv
