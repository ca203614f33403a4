// Goal: a query needs no directory: answers are cached until they are invalidated.

#include "client/holders/directory_view.h"

#include <thread>

#include "client/holders/holder_peer.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::MakeTestCorpus;
using test::TestFleet;
using test::TestGeometry;

struct View : testing::Test {
  View() {
    fleet.StartHolder(0);
    fleet.Load("c", corpus, {0, 0});
  }
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  TestFleet fleet{{fabric.get()}};
  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {3, 4}, 1);
  DirectoryView view{&fleet};
  std::vector<ChunkId> ids = {corpus.chunks[0].info.id, corpus.chunks[1].info.id};
};

TEST_F(View, KeepsASnapshotWithoutCalls) {
  const auto first = view.Resolve("c", "", kInstantMax);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->chunks.size(), 2u);
  fleet.set_directory_down(true);
  const auto second = view.Resolve("c", "", kInstantMax);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(first->get(), second->get());
  EXPECT_EQ(fleet.directory_calls(), 2) << "for the corpus, and for its holders";
}

TEST_F(View, MembersArriveWithTheCorpusThatNamesThem) {
  ASSERT_TRUE(view.Resolve("c", "", kInstantMax).ok());
  EXPECT_EQ(view.KnownHolders().count(TestFleet::Name(0)), 1u);
  // Cached holders are not queried again.
  fleet.Load("d", corpus, {0, 0});
  const int calls = fleet.directory_calls();
  ASSERT_TRUE(view.Resolve("d", "", kInstantMax).ok());
  EXPECT_EQ(fleet.directory_calls(), calls + 1);
  fleet.StartHolder(1);
  fleet.Lease("d", corpus, 1, {0});
  view.Invalidate("d");
  ASSERT_TRUE(view.Resolve("d", "", kInstantMax).ok());
  EXPECT_EQ(view.KnownHolders().count(TestFleet::Name(1)), 1u);
  view.Invalidate("");
  ASSERT_TRUE(view.ResolveChunks(ids, corpus.geometry, "", kInstantMax).ok());
  EXPECT_EQ(view.KnownHolders().count(TestFleet::Name(1)), 1u);
}

// A directory that has one key, unless it is unreachable.
class KeyedDirectory final : public DirectoryControl {
 public:
  absl::StatusOr<Corpus> GetCorpus(std::string_view, std::string_view, Instant) override {
    return absl::NotFoundError("none");
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant) override {
    return std::vector<Member>();
  }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId&, std::string_view,
                                                  Instant) override {
    return std::vector<Corpus>();
  }
  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view, Instant) override {
    ++calls;
    if (is_away) return absl::UnavailableError("away");
    TenantKey key;
    key.bytes.fill(7);
    return key;
  }

  bool is_away = false;
  int calls = 0;
};

TEST(TenantKeys, AreKeptWhileTheDirectoryIsAway) {
  KeyedDirectory directory;
  DirectoryView view(&directory);
  const auto key = view.TenantKeyOf("acme", kInstantMax);
  ASSERT_TRUE(key.ok() && !key->IsZero());
  EXPECT_EQ(*view.TenantKeyOf("acme", kInstantMax), *key);
  EXPECT_EQ(directory.calls, 1);
  EXPECT_TRUE(view.TenantKeyOf("", kInstantMax)->IsZero());
  EXPECT_EQ(directory.calls, 1) << "the shared tenant has none to ask for";
  view.Invalidate("");
  directory.is_away = true;
  const auto kept = view.TenantKeyOf("acme", kInstantMax);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(*kept, *key);
  EXPECT_TRUE(absl::IsUnavailable(view.TenantKeyOf("other", kInstantMax).status()));
  directory.is_away = false;
  EXPECT_TRUE(view.TenantKeyOf("acme", kInstantMax).ok());
  EXPECT_EQ(directory.calls, 4);
}

TEST_F(View, IgnoresNewsOfAnEarlierIncarnation) {
  const uint64_t news = view.member_news();
  Member member = fleet.member(0);
  member.epoch = {7};
  member.kernel_target = KernelTargetId::kAvx3;
  view.Note(member);
  EXPECT_GT(view.member_news(), news);
  member.epoch = {6};
  member.kernel_target = KernelTargetId::kAvx2;
  view.Note(member);
  // Nor is a list used that left the directory before the news.
  ASSERT_TRUE(view.ListHolders(kInstantMax).ok());
  EXPECT_EQ(view.KnownHolders().at(TestFleet::Name(0)).kernel_target, KernelTargetId::kAvx3);
  member.role = MemberRole::kRequester;
  member.epoch = {8};
  view.Note(member);
  EXPECT_EQ(view.KnownHolders().at(TestFleet::Name(0)).epoch.value, 7u);
}

TEST_F(View, QueriesAgainAfterForget) {
  const auto first = view.Resolve("c", "", kInstantMax);
  view.Invalidate("other");
  EXPECT_EQ(view.Resolve("c", "", kInstantMax)->get(), first->get());
  fleet.Edit("c", [](Corpus& c) { c.version = 9; });
  view.Invalidate("c");
  EXPECT_EQ((*view.Resolve("c", "", kInstantMax))->version, 9u);
  EXPECT_EQ((*first)->version, 0u);  // a snapshot stays what it was
  view.Invalidate("c");
  fleet.set_directory_down(true);
  EXPECT_EQ(view.Resolve("c", "", test::Shortly()).status().code(), absl::StatusCode::kUnavailable);
}

// A restart of the directory delays a look-up, and causes no error.
TEST_F(View, WaitsForADirectoryThatReturns) {
  fleet.set_directory_down(true);
  std::thread back([&] {
    const Instant give_up = test::Soon();
    while (fleet.directory_calls() < 3 && Clock::Real()->Now() < give_up) std::this_thread::yield();
    fleet.set_directory_down(false);
  });
  const auto named = view.Resolve("c", "", test::Soon());
  EXPECT_TRUE(named.ok()) << named.status();
  back.join();
  EXPECT_EQ(view.Resolve("nosuch", "", test::Soon()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(View, ANewIncarnationOfTheDirectoryWakesWaiters) {
  ASSERT_TRUE(view.ListHolders(kInstantMax).ok());
  const uint64_t seen = view.changes();
  ASSERT_TRUE(view.ListHolders(kInstantMax).ok());
  EXPECT_EQ(view.changes(), seen) << "nothing is new";
  const Instant begun = Clock::Real()->Now();
  std::thread waits([&] { view.AwaitChange(seen, test::Soon()); });
  Member member = fleet.member(0);
  member.epoch.value += 1;
  view.Note(member);
  waits.join();
  EXPECT_LT(Clock::Real()->Now() - begun, test::kPatience);
  const auto kept = *view.Resolve("c", "", kInstantMax);
  EXPECT_TRUE(view.Keeps(*kept));
  view.Doubt(*kept);
  EXPECT_TRUE(view.Keeps(*kept));
  const uint64_t before = view.changes();
  view.Invalidate("c");
  EXPECT_FALSE(view.Keeps(*kept));
  EXPECT_NE(view.changes(), before);
}

// A restarted directory may be down again before it was queried.
TEST_F(View, QueriesAgainAfterMissedChangesIfTheDirectoryAnswers) {
  const auto first = view.Resolve("c", "", kInstantMax);
  const auto member = view.FindMember(TestFleet::Name(0), false, kInstantMax);
  ASSERT_TRUE(first.ok() && member.ok()) << member.status();
  fleet.Edit("c", [](Corpus& c) { c.version = 9; });
  view.Invalidate("");
  fleet.set_directory_down(true);
  EXPECT_EQ(view.Resolve("c", "", kInstantMax)->get(), first->get());
  EXPECT_EQ(*view.FindMember(TestFleet::Name(0), false, kInstantMax), *member);
  EXPECT_EQ(view.FindMember(TestFleet::Name(0), true, kInstantMax).status().code(),
            absl::StatusCode::kUnavailable);
  fleet.set_directory_down(false);
  EXPECT_EQ((*view.Resolve("c", "", kInstantMax))->version, 9u);
  const int calls = fleet.directory_calls();
  EXPECT_TRUE(view.Resolve("c", "", kInstantMax).ok());
  EXPECT_TRUE(view.FindMember(TestFleet::Name(0), false, kInstantMax).ok());
  EXPECT_EQ(fleet.directory_calls(), calls) << "no longer doubted, and members were listed with it";
}

TEST_F(View, SeparatesTenants) {
  EXPECT_EQ(view.Resolve("c", "t", kInstantMax).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(view.Resolve("c", "", kInstantMax).ok());
  EXPECT_EQ(view.Resolve("c", "t", kInstantMax).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(View, RefusesACorpusThatIsMalformed) {
  fleet.Edit("c", [](Corpus& c) { c.geometry.d_v = c.geometry.d_qk + 1; });
  EXPECT_FALSE(view.Resolve("c", "", kInstantMax).ok());
}

TEST_F(View, ChunksByIdAreOneSnapshot) {
  const auto first = view.ResolveChunks(ids, corpus.geometry, "", kInstantMax);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ((*first)->chunks.size(), 2u);
  EXPECT_EQ((*first)->chunks[1].id, ids[1]);
  EXPECT_EQ((*first)->chunks[1].token_count, 4u);
  const int calls = fleet.directory_calls();
  EXPECT_EQ(view.ResolveChunks(ids, corpus.geometry, "", kInstantMax)->get(), first->get());
  EXPECT_EQ(fleet.directory_calls(), calls);
  // Another order is another corpus.
  std::swap(ids[0], ids[1]);
  EXPECT_EQ((*view.ResolveChunks(ids, corpus.geometry, "", kInstantMax))->chunks[1].id, ids[1]);
  view.Invalidate(**first);
  std::swap(ids[0], ids[1]);
  EXPECT_NE(view.ResolveChunks(ids, corpus.geometry, "", kInstantMax)->get(), first->get());
}

TEST_F(View, AnyNameForgetsTheNamelessOnes) {
  const auto first = view.ResolveChunks(ids, corpus.geometry, "", kInstantMax);
  ASSERT_TRUE(first.ok()) << first.status();
  fleet.Edit("c", [](Corpus& c) { c.chunks[1].set_holders({TestFleet::Name(1)}); });
  view.Invalidate("other");
  const auto second = view.ResolveChunks(ids, corpus.geometry, "", kInstantMax);
  EXPECT_EQ((*second)->chunks[1].holders()[0], TestFleet::Name(1));
}

// The directory is queried again. While it is unreachable, or answers the same, the snapshot stays.
TEST_F(View, QueriesAgainForADoubtedCorpus) {
  const auto named = *view.Resolve("c", "", kInstantMax);
  const auto nameless = *view.ResolveChunks(ids, corpus.geometry, "", kInstantMax);
  view.Doubt(*named);
  view.Doubt(*nameless);
  fleet.set_directory_down(true);
  EXPECT_EQ(*view.Resolve("c", "", kInstantMax), named);
  EXPECT_EQ(*view.ResolveChunks(ids, corpus.geometry, "", kInstantMax), nameless);
  fleet.set_directory_down(false);
  int calls = fleet.directory_calls();
  EXPECT_EQ(*view.Resolve("c", "", kInstantMax), named);
  EXPECT_EQ(fleet.directory_calls(), ++calls);
  EXPECT_EQ(*view.Resolve("c", "", kInstantMax), named);
  EXPECT_EQ(fleet.directory_calls(), calls);
  view.Doubt(*named);
  fleet.Edit("c", [](Corpus& c) { c.chunks[0].set_holders({TestFleet::Name(1)}); });
  EXPECT_EQ((*view.Resolve("c", "", kInstantMax))->chunks[0].holders()[0], TestFleet::Name(1));
  EXPECT_EQ((*view.ResolveChunks(ids, corpus.geometry, "", kInstantMax))->chunks[0].holders()[0],
            TestFleet::Name(1));
}

TEST_F(View, ChunksWithoutAHolderOrOfAnotherModel) {
  Geometry other = corpus.geometry;
  other.revision = "r2";
  const auto wrong = view.ResolveChunks(ids, other, "", kInstantMax);
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(wrong.status().ToString().find("r2"), std::string::npos) << wrong.status();
  ids[1].bytes[0] ^= 1;
  const auto absent = view.ResolveChunks(ids, corpus.geometry, "", kInstantMax);
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(absent.status().ToString().find(ids[1].ToHex()), std::string::npos);
  EXPECT_EQ(view.ResolveChunks({}, corpus.geometry, "", kInstantMax).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(View, MembersAreKeptToo) {
  const auto member = view.FindMember(TestFleet::Name(0), false, kInstantMax);
  ASSERT_TRUE(member.ok()) << member.status();
  EXPECT_EQ(member->control_address, "inproc:0");
  const int calls = fleet.directory_calls();
  EXPECT_TRUE(view.FindMember(TestFleet::Name(0), false, kInstantMax).ok());
  EXPECT_EQ(fleet.directory_calls(), calls);
  EXPECT_TRUE(view.FindMember(TestFleet::Name(0), true, kInstantMax).ok());
  EXPECT_EQ(fleet.directory_calls(), calls + 1);
  EXPECT_EQ(view.FindMember({"stranger"}, false, kInstantMax).status().code(),
            absl::StatusCode::kUnavailable);
}

// A Forget during the directory's answer wins: the answer may be older than the reason for the
// Forget.
TEST_F(View, AnAnswerThatAForgetOvertookIsNotKept) {
  struct Overtaken : DirectoryControl {
    TestFleet* fleet;
    DirectoryView* view = nullptr;
    absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                     Instant deadline) override {
      auto corpus = fleet->GetCorpus(name, tenant, deadline);
      view->Invalidate("c");
      return corpus;
    }
    absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) override {
      return fleet->ListMembers(deadline);
    }
    absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id, std::string_view tenant,
                                                    Instant deadline) override {
      return fleet->LocateChunk(id, tenant, deadline);
    }
  } overtaken;
  DirectoryView raced(&overtaken);
  overtaken.fleet = &fleet;
  overtaken.view = &raced;
  ASSERT_TRUE(raced.Resolve("c", "", kInstantMax).ok());
  const int calls = fleet.directory_calls();
  ASSERT_TRUE(raced.Resolve("c", "", kInstantMax).ok());
  EXPECT_EQ(fleet.directory_calls(), calls + 1);
}

// One connection for each holder, until it is suspected and the directory has a newer entry.
TEST_F(View, ConnectionsAreKeptUntilTheHolderMoves) {
  PeerTable peers(&view, &fleet);
  HolderPeer& peer = **peers.Find(TestFleet::Name(0));
  EXPECT_EQ(*peers.Find(TestFleet::Name(0)), &peer);
  EXPECT_EQ(peer.Describe(), "holder h0 (address not known)");
  const auto first = *peers.Connect(peer, kInstantMax);
  EXPECT_EQ(peer.Describe(), "holder h0 (inproc:0)");
  const int calls = fleet.directory_calls();
  EXPECT_EQ(*peers.Connect(peer, kInstantMax), first);
  EXPECT_EQ(fleet.directory_calls(), calls);
  // Suspected, but at the same place: the same connection. With the directory unreachable: the
  // same, too.
  peers.Suspect(peer);
  EXPECT_EQ(*peers.Connect(peer, kInstantMax), first);
  EXPECT_EQ(fleet.directory_calls(), calls + 1);
  peers.Suspect(peer);
  fleet.set_directory_down(true);
  EXPECT_EQ(*peers.Connect(peer, kInstantMax), first);
  fleet.set_directory_down(false);
  // Another incarnation of the holder.
  fleet.StopHolder(0);
  fleet.StartHolder(0);
  EXPECT_NE(*peers.Connect(peer, kInstantMax), first);
  HolderPeer& stranger = **peers.Find({"stranger"});
  EXPECT_EQ(peers.Connect(stranger, kInstantMax).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(peers.Views().size(), 2u);
  EXPECT_EQ(peers.Views()[1].member.id.name, "stranger");
}

}  // namespace
}  // namespace ckv
