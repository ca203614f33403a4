// Goal: a corpus moves to other holders while it is served, and an interrupted move loses and
// repeats nothing.
// Method: whole daemons in this process; ckvctl corpus partition, and the steps it is made of.

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/tools/ctl/fleet/partition_run.h"
#include "server/services/chunk_order.h"
#include "tests/server/services/moving_chunks_fixture.h"

namespace ckv {
namespace {

using ctl::CopiedChunk;
using ctl::PartitionRun;
using test::Call;
using test::Soon;
using testing::HasSubstr;
using MovingChunksTest = test::MovingChunksTest;

TEST_F(MovingChunksTest, AHolderPushesToAnother) {
  StartHolders(2);
  const auto corpus = Chunks(5);
  for (const test::TestChunk& chunk : corpus.chunks)
    ASSERT_TRUE(test::Put(*holder_stubs_[0], corpus.geometry, chunk).ok());
  v1::PushChunksRequest request;
  *request.mutable_geometry() = ToProto(corpus.geometry);
  request.set_to_id("h1");
  request.set_to_address(holders_[1]->address());
  for (const test::TestChunk& chunk : corpus.chunks)
    request.add_ids(std::string(chunk.info.id.AsBytes()));
  const auto push = [&](std::vector<v1::PushChunksReply>* replies) {
    Call call;
    const auto reader = holder_stubs_[0]->PushChunks(call.get(), request);
    v1::PushChunksReply reply;
    while (reader->Read(&reply)) replies->push_back(reply);
    return reader->Finish();
  };
  std::vector<v1::PushChunksReply> first, second;
  ASSERT_TRUE(push(&first).ok());
  ASSERT_TRUE(push(&second).ok());
  ASSERT_EQ(first.size(), 5u);
  ASSERT_EQ(second.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(first[i].id(), request.ids(static_cast<int>(i)));
    EXPECT_FALSE(first[i].reused());
    EXPECT_EQ(first[i].bytes_sent(), 20 * corpus.geometry.token_bytes());
    EXPECT_TRUE(second[i].reused());
    EXPECT_EQ(second[i].bytes_sent(), 0u);
    EXPECT_TRUE(Ask(1, corpus, i));
  }
  const auto code = [&] {
    std::vector<v1::PushChunksReply> replies;
    return push(&replies).error_code();
  };
  request.set_ids(3, std::string(32, 'x'));
  EXPECT_EQ(code(), grpc::StatusCode::NOT_FOUND);
  request.set_ids(3, "short");
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_ids(3, request.ids(0));
  request.mutable_geometry()->set_revision("r2");
  EXPECT_EQ(code(), grpc::StatusCode::FAILED_PRECONDITION);
  *request.mutable_geometry() = ToProto(corpus.geometry);
  request.set_to_address("127.0.0.1:1");
  EXPECT_EQ(code(), grpc::StatusCode::UNAVAILABLE);
  request.clear_to_address();
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_to_address(holders_[1]->address());
  for (int i = request.ids_size(); i <= kOrderIdCountMax; ++i) request.add_ids(request.ids(0));
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// Goal: every answer is right, and none refused, while all chunks move and old copies are dropped.
TEST_F(MovingChunksTest, ACorpusMovesWhileItIsServed) {
  StartHolders(4);
  StartRequester();
  const auto corpus = Chunks(24);
  LoadOn("c", corpus, {0});
  std::mt19937 rng(8);
  const auto q = test::RandomBf16(4 * corpus.geometry.d_qk, rng);
  const auto request = test::AttendOf("c", 1, q, corpus.geometry.d_qk);
  const auto expected = test::Reference(corpus.geometry, q, corpus.Rows(1));
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> count{0};
  std::vector<std::string> failures;  // of the thread
  std::thread engine([&] {
    while (!stop) {
      v1::AttendReply reply;
      const grpc::Status status = Attend(request, &reply);
      if (!status.ok()) failures.push_back(status.error_message());
      if (status.ok()) test::ExpectNear(reply, expected);
      ++count;
    }
  });
  const auto await_attends = [&](uint32_t more) {
    const uint32_t until = count + more;
    const Instant deadline = Soon();
    while (count < until && Clock::Real()->Now() < deadline) std::this_thread::yield();
  };
  const std::vector<std::vector<std::string>> moves = {
      {"--policy", "hash"},
      {"--weights", "h0=0,h1=2"},
      {"--replicas", "2", "--policy", "document"},
      {"--replicas", "1", "--policy", "range"},
      {"--weights", "h1=0,h2=0,h3=0"},
  };
  for (const std::vector<std::string>& move : moves) {
    std::vector<std::string> arguments = {"corpus", "partition", "c"};
    arguments.insert(arguments.end(), move.begin(), move.end());
    const Ran ran = Run(arguments);
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_GT(ran.json["chunks_sent"], 0);
    EXPECT_EQ(ran.json["chunks_sent"], ran.json["copy_count"]);
    EXPECT_EQ(ran.json["chunks_dropped"], ran.json["drop_count"]);
    await_attends(5);
    ExpectPlaced(Get("c"));
  }
  stop = true;
  engine.join();
  EXPECT_GE(count, 25u);
  EXPECT_THAT(failures, testing::IsEmpty());
}

TEST_F(MovingChunksTest, APlanIsPrintedAndADryRunMovesNothing) {
  StartHolders(3);
  const auto corpus = Chunks(12);
  const Corpus before = LoadOn("c", corpus, {0});
  const Ran dry = Run({"corpus", "partition", "c", "--dry-run"}, /*json=*/false);
  ASSERT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(dry.text, HasSubstr("HOLDER"));
  EXPECT_THAT(dry.text, HasSubstr("a dry run"));
  EXPECT_EQ(Get("c").version, before.version);
  ExpectPlaced(before);
  const Ran moved = Run({"corpus", "partition", "c"}, /*json=*/false);
  ASSERT_EQ(moved.code, 0) << moved.err;
  EXPECT_THAT(moved.err, HasSubstr("HOLDER"));  // before it moves
  EXPECT_THAT(moved.err, HasSubstr("push"));
  const Ran again = Run({"corpus", "partition", "c"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.json["copy_count"], 0);
  EXPECT_EQ(again.json["version"], Get("c").version);
  EXPECT_EQ(Run({"corpus", "partition", "c", "--weights", "h9=1"}).code, 2);
  EXPECT_EQ(Run({"corpus", "partition", "c", "--weights", "h0"}).code, 2);
  EXPECT_EQ(Run({"corpus", "partition", "c", "--weights", "h0=1,h0=2"}).code, 2);
  EXPECT_EQ(Run({"corpus", "partition", "c", "--replicas", "4"}).code, 2);
  EXPECT_EQ(Run({"corpus", "partition", "c", "--policy", "any"}).code, 2);
  EXPECT_EQ(Run({"corpus", "partition", "nothing"}).code, 3);
  EXPECT_EQ(Run({"corpus", "partition", "c", "--tenant", "red"}).code, 7);
}

// Goal: whatever an interrupted run pushed is reused, and the switch happens once, at the end.
TEST_F(MovingChunksTest, AnInterruptedRunContinues) {
  StartHolders(3);
  const auto chunks = Chunks(30);
  const Corpus corpus = LoadOn("c", chunks, {0});
  const PartitionPlan plan = PlanOn(corpus, {1, 2});
  ctl::Fleet fleet = MakeFleet();
  const std::vector<Member> members = *fleet.Members();
  constexpr uint32_t kBefore = 7;
  uint32_t reported = 0;
  const auto first = PartitionRun::Create(&fleet, &corpus, &plan, members, [&](const CopiedChunk&) {
    return ++reported == kBefore ? absl::CancelledError("interrupted") : absl::OkStatus();
  });
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status interrupted = (*first)->Copy();
  EXPECT_TRUE(absl::IsCancelled(interrupted)) << interrupted;
  EXPECT_THAT(std::string(interrupted.message()), HasSubstr("nothing was switched"));
  EXPECT_EQ(reported, kBefore);
  EXPECT_EQ(Get("c").version, corpus.version);
  // A put that was in flight may still be completed.
  const size_t there = Listed(1).size() + Listed(2).size();
  EXPECT_GE(there, kBefore);
  const Ran rest = Run({"corpus", "partition", "c", "--weights", "h0=0"});
  ASSERT_EQ(rest.code, 0) << rest.err;
  const size_t reused = rest.json["chunks_reused"];
  EXPECT_GE(reused, there);
  EXPECT_EQ(rest.json["chunks_sent"], 30 - reused);
  EXPECT_EQ(rest.json["bytes_sent"], (30 - reused) * 20 * chunks.geometry.token_bytes());
  ExpectPlaced(Get("c"));
}

TEST_F(MovingChunksTest, ACorpusThatChangedIsNotSwitched) {
  StartHolders(2);
  const auto chunks = Chunks(6);
  const Corpus corpus = LoadOn("c", chunks, {0});
  const PartitionPlan plan = PlanOn(corpus, {1});
  ctl::Fleet fleet = MakeFleet();
  const auto run = PartitionRun::Create(&fleet, &corpus, &plan, *fleet.Members(),
                                        [](const CopiedChunk&) { return absl::OkStatus(); });
  ASSERT_TRUE(run.ok() && (*run)->Copy().ok());
  v1::PublishCorpusRequest publish;
  *publish.mutable_corpus() = ToProto(chunks.Publish("c", "", {{{"h0"}}}));
  publish.set_replace(true);
  v1::PublishCorpusReply published;
  ASSERT_TRUE(directory_stub_->PublishCorpus(Call().get(), publish, &published).ok());
  const absl::Status switched = (*run)->Switch().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(switched)) << switched;
  EXPECT_THAT(std::string(switched.message()), HasSubstr("changed meanwhile"));
  EXPECT_EQ(Get("c").version, published.version());
  EXPECT_EQ(Listed(0).size(), 6u);
  EXPECT_EQ(Run({"corpus", "partition", "c", "--weights", "h0=0"}).json["chunks_reused"], 6);
}

// Goal: a source that fails gives way to another replica, for what it lacks or for everything.
TEST_F(MovingChunksTest, AnyLiveReplicaIsASource) {
  StartHolders(3);
  const auto chunks = Chunks(10);
  LoadOn("c", chunks, {0, 1});
  Drop(0, chunks.chunks[3].info.id);
  Drop(1, chunks.chunks[6].info.id);
  const Ran ran = Run({"corpus", "partition", "c", "--weights", "h0=0,h1=0", "--replicas", "1"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["chunks_sent"], 10);
  EXPECT_EQ(Listed(2).size(), 10u);

  // A holder that is registered and does not answer.
  const auto more = Chunks(10, /*seed=*/2);
  v1::RegisterRequest gone;
  gone.mutable_member()->set_id("gone");
  gone.mutable_member()->set_role(v1::MEMBER_ROLE_HOLDER);
  gone.mutable_member()->set_control_address("127.0.0.1:1");
  gone.set_lease_ttl_ms(60'000);
  v1::RegisterReply registered;
  ASSERT_TRUE(directory_stub_->Register(Call().get(), gone, &registered).ok());
  for (const test::TestChunk& chunk : more.chunks)
    ASSERT_TRUE(test::Put(*holder_stubs_[0], more.geometry, chunk).ok());
  ASSERT_TRUE(test::Publish(*directory_stub_, more.Publish("d", "", {{{"gone"}, {"h0"}}})).ok());
  const Corpus corpus = Get("d");
  const PartitionPlan plan = PlanOn(corpus, {1, 2});
  ctl::Fleet fleet = MakeFleet();
  const auto run = PartitionRun::Create(&fleet, &corpus, &plan, *fleet.Members(),
                                        [](const CopiedChunk&) { return absl::OkStatus(); });
  ASSERT_TRUE(run.ok()) << run.status();
  const absl::Status copied = (*run)->Copy();
  EXPECT_TRUE(copied.ok()) << copied;
}

TEST_F(MovingChunksTest, AMissingChunkIsAnErrorAndNothingIsSwitched) {
  StartHolders(2);
  const auto chunks = Chunks(4);
  const Corpus corpus = LoadOn("c", chunks, {0});
  Drop(0, chunks.chunks[2].info.id);
  const Ran ran = Run({"corpus", "partition", "c", "--weights", "h0=0"});
  EXPECT_EQ(ran.code, 3) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr(chunks.chunks[2].info.id.ShortHex()));
  EXPECT_THAT(ran.err, HasSubstr("nothing was switched"));
  EXPECT_EQ(Get("c").version, corpus.version);
  EXPECT_EQ(Listed(0).size(), 3u);

  ASSERT_TRUE(test::Publish(*directory_stub_, chunks.Publish("lost", "", {{{"h7"}}})).ok());
  const Ran lost = Run({"corpus", "partition", "lost"});
  EXPECT_EQ(lost.code, 7) << lost.err;
  EXPECT_THAT(lost.err, HasSubstr("none of its holders is alive"));
}

// Goal: the move removes old copies, though it queried them itself a moment before; but not what an
// operator pinned.
TEST_F(MovingChunksTest, DropsOldCopiesUnlessPinned) {
  StartHolders(2);
  const auto chunks = Chunks(6);
  LoadOn("c", chunks, {0});
  v1::PinChunkRequest pin;
  pin.set_id(std::string(chunks.chunks[3].info.id.AsBytes()));
  v1::PinChunkReply pinned;
  ASSERT_TRUE(holder_stubs_[0]->PinChunk(Call().get(), pin, &pinned).ok());
  const Ran ran = Run({"corpus", "partition", "c", "--weights", "h0=0"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["chunks_dropped"], 5);
  EXPECT_EQ(Listed(0), std::set<std::string>{pin.id()});
  ASSERT_EQ(ran.json["warnings"].size(), 1u);
  EXPECT_THAT(std::string(ran.json["warnings"][0]), HasSubstr("holder h0 keeps 1 chunk"));
}

// Goal: no old copy is removed before the chunk was seen on each new holder, even if the plan has
// nothing to copy, and if a copy disappeared again before the switch.
TEST_F(MovingChunksTest, CopiesMissingChunksAgainBeforeTheSwitch) {
  StartHolders(2);
  const auto chunks = Chunks(10);
  const Corpus corpus = LoadOn("c", chunks, {0, 1});
  // To be kept on the one that lost it.
  const PartitionPlan plan = PlanOn(corpus, {0, 1});
  ASSERT_TRUE(plan.copies.empty());
  const std::string& keeper = plan.holders[4][0].name;
  Drop(keeper == "h0" ? 0 : 1, chunks.chunks[4].info.id);
  const Ran ran = Run({"corpus", "partition", "c", "--replicas", "1"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["chunks_sent"], 1);
  EXPECT_EQ(ran.json["chunks_dropped"], ran.json["drop_count"]);
  ExpectPlaced(Get("c"));

  const auto more = Chunks(6, /*seed=*/2);
  const Corpus other = LoadOn("d", more, {0});
  const PartitionPlan away = PlanOn(other, {1});
  ctl::Fleet fleet = MakeFleet();
  bool dropped = false;
  const auto run =
      PartitionRun::Create(&fleet, &other, &away, *fleet.Members(), [&](const CopiedChunk& copied) {
        if (!std::exchange(dropped, true)) Drop(1, other.chunks[copied.chunk].id);
        return absl::OkStatus();
      });
  ASSERT_TRUE(run.ok()) << run.status();
  const absl::Status copied = (*run)->Copy();
  ASSERT_TRUE(copied.ok()) << copied;
  EXPECT_EQ((*run)->tallies().at("h1").chunks_sent, 7u);
  for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(Ask(1, more, i));
}

}  // namespace
}  // namespace ckv
