// Goal: what no corpus names is removed, but never what a load under way has put.
// Method: whole daemons in this process; ckvctl gc, and its single steps.

#include "client/tools/ctl/fleet/garbage.h"

#include <string>
#include <vector>

#include "client/tools/ctl/time_span.h"
#include "tests/server/services/moving_chunks_fixture.h"

namespace ckv {
namespace {

using test::Call;
using test::Soon;
using testing::HasSubstr;

using GarbageTest = test::MovingChunksTest;

TEST_F(GarbageTest, GarbageIsWhatNoCorpusPlacesThere) {
  StartHolders(2);
  const auto both = Chunks(6), rest = Chunks(4, /*seed=*/2);
  LoadOn("a", both, {0, 1});
  auto part = both;
  part.chunks.resize(2);
  LoadOn("b", part, {0}, /*tenant=*/"");
  LoadOn("c", rest, {0});
  AwaitIdle(0);
  AwaitIdle(1);
  Ran ran = Run({"gc", "--grace", "1ms"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["dropped_count"], 0);
  EXPECT_EQ(ran.json["placed_count"], 16);

  // What both corpora have stays on h0, where one of them is, until that is dropped too.
  DropCorpusOnly("a");
  ran = Run({"gc", "--grace", "1ms", "--dry-run"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["garbage_count"], 10);
  EXPECT_EQ(ran.json["dropped_count"], 0);
  EXPECT_EQ(Listed(0).size(), 10u);
  v1::PinChunkRequest pin;
  pin.set_id(std::string(both.chunks[5].info.id.AsBytes()));
  v1::PinChunkReply pinned;
  ASSERT_TRUE(holder_stubs_[1]->PinChunk(Call().get(), pin, &pinned).ok());
  ran = Run({"gc", "--grace", "1ms"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["dropped_count"], 9);
  EXPECT_EQ(ran.json["kept_count"], 1);
  EXPECT_EQ(ran.json["dropped_bytes"], ran.json["garbage_bytes"]);
  ASSERT_EQ(ran.json["holders"].size(), 2u);
  EXPECT_EQ(ran.json["holders"][0]["id"], "h0");
  EXPECT_EQ(ran.json["holders"][0]["dropped_count"], 4);
  EXPECT_EQ(ran.json["holders"][1]["dropped_count"], 5);
  EXPECT_EQ(Listed(0).size(), 6u);
  EXPECT_TRUE(Ask(0, both, 0) && Ask(0, both, 1));
  DropCorpusOnly("b");
  AwaitIdle(0);
  EXPECT_EQ(Run({"gc", "--grace", "1ms"}).json["dropped_count"], 2);

  // With no corpus left, it may be the directory that lost them.
  DropCorpusOnly("c");
  AwaitIdle(0);
  ran = Run({"gc", "--grace", "1ms"});
  EXPECT_EQ(ran.code, 7);
  EXPECT_THAT(ran.err, HasSubstr("did the directory lose its corpora in a restart?"));
  EXPECT_EQ(Listed(0).size(), 4u);
  EXPECT_EQ(Run({"gc", "--grace", "1ms", "--without-corpora"}).json["dropped_count"], 4);
  EXPECT_EQ(Listed(0).size(), 0u);
}

// Goal: whatever the order of a load's and a collection's steps, no chunk of the load is lost.
TEST_F(GarbageTest, ACollectionLeavesALoadAlone) {
  StartHolders(1);
  LoadOn("other", Chunks(1, /*seed=*/2), {0});
  const auto corpus = Chunks(4);
  for (const test::TestChunk& chunk : corpus.chunks)
    ASSERT_TRUE(test::Put(*holder_stubs_[0], corpus.geometry, chunk).ok());
  // The load pauses before it publishes: within the grace its chunks stay.
  Ran ran = Run({"gc"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["young_count"], 4);
  EXPECT_EQ(Listed(0).size(), 5u);

  // The load paused for longer than the grace, and continues between the collection's steps: it
  // queries its first chunk, and puts the second again.
  AwaitIdle(0);
  ctl::Fleet fleet = MakeFleet();
  const Member holder = fleet.Holders()->at(0);
  auto garbage = ctl::FindGarbage(fleet, holder, Duration(0));
  ASSERT_TRUE(garbage.ok()) << garbage.status();
  EXPECT_EQ(garbage->chunks.size(), 4u);
  EXPECT_TRUE(Ask(0, corpus, 0));
  EXPECT_EQ(test::Put(*holder_stubs_[0], corpus.geometry, corpus.chunks[1]).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  ASSERT_TRUE(ctl::DropGarbage(fleet, *garbage, std::chrono::hours(1), [](uint64_t) {}).ok());
  EXPECT_EQ(garbage->tally.touched_count, 4u);
  EXPECT_EQ(Listed(0).size(), 5u);

  // The load was killed: what it put is removed.
  AwaitIdle(0);
  EXPECT_EQ(Run({"gc", "--grace", "1ms"}).json["dropped_count"], 4);
  EXPECT_EQ(Listed(0).size(), 1u);
}

TEST_F(GarbageTest, ReportsAHolderThatDoesNotAnswer) {
  StartHolders(2);
  LoadOn("c", Chunks(2), {0});
  v1::RegisterRequest gone;
  gone.mutable_member()->set_id("gone");
  gone.mutable_member()->set_role(v1::MEMBER_ROLE_HOLDER);
  gone.mutable_member()->set_control_address("127.0.0.1:1");
  gone.set_lease_ttl_ms(60'000);
  v1::RegisterReply registered;
  ASSERT_TRUE(directory_stub_->Register(Call().get(), gone, &registered).ok());
  const Ran ran = Run({"gc"}, /*json=*/false);
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("warning: holder gone at 127.0.0.1:1"));
  EXPECT_THAT(ran.text, HasSubstr("h1"));
}

// Goal: a put or a pin with a time limit ends by itself, through the daemon's ticks.
TEST_F(GarbageTest, TimesEnd) {
  StartHolders(1);
  const auto corpus = Chunks(3);
  LoadOn("c", corpus, {0});
  const auto short_lived = Chunks(2, /*seed=*/2);
  for (const test::TestChunk& chunk : short_lived.chunks) {
    auto messages = test::MessagesOf(short_lived.geometry, chunk);
    messages[0].mutable_header()->set_ttl_ms(1);
    ASSERT_TRUE(test::PutMessages(*holder_stubs_[0], messages).ok());
  }
  // A put of no ttl lifts it.
  EXPECT_EQ(test::Put(*holder_stubs_[0], short_lived.geometry, short_lived.chunks[0]).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  AwaitIdle(0);
  EXPECT_EQ(Listed(0).size(), 5u);
  const auto tick_until = [&](const auto& condition) {
    const Instant deadline = Soon();
    while (!condition() && Clock::Real()->Now() < deadline) EXPECT_TRUE(holders_[0]->Tick().ok());
    EXPECT_TRUE(condition());
  };
  tick_until([&] { return Listed(0).size() == 4; });
  EXPECT_TRUE(Ask(0, short_lived, 0));

  const auto kept = [&] {
    v1::ListChunksReply page;
    EXPECT_TRUE(holder_stubs_[0]->ListChunks(Call().get(), {}, &page).ok());
    int count = 0;
    for (const auto& chunk : page.chunks()) count += chunk.kept() ? 1 : 0;
    return count;
  };
  const auto pin = [&](const std::string& verb, const std::string& time) {
    std::vector<std::string> arguments = {"chunk", verb, "--corpus", "c", "--ordinal", "1"};
    if (!time.empty()) arguments.insert(arguments.end(), {"--for", time});
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.json["holders"].dump();
  };
  EXPECT_EQ(pin("pin", "1h"), "[\"h0\"]");
  ASSERT_TRUE(holders_[0]->Tick().ok());
  EXPECT_EQ(kept(), 1);
  pin("pin", "1ms");
  AwaitIdle(0);
  tick_until([&] { return kept() == 0; });
  pin("pin", "");
  ASSERT_TRUE(holders_[0]->Tick().ok());
  EXPECT_EQ(kept(), 1);
  pin("unpin", "");
  EXPECT_EQ(kept(), 0);
  EXPECT_EQ(Run({"chunk", "pin", std::string(64, 'a')}).code, 3);
}

TEST(TimeSpans, HaveUnits) {
  EXPECT_EQ(ctl::TimeSpanOf("1h30m"), std::chrono::minutes(90));
  EXPECT_EQ(ctl::TimeSpanOf("250ms"), std::chrono::milliseconds(250));
  for (std::string good : {"0", "1h", "8760h"}) EXPECT_EQ(ctl::TimeSpan()(good), "");
  for (std::string bad : {"", "1", "-1h", "h", "8761h", "inf"})
    EXPECT_NE(ctl::TimeSpan()(bad), "") << bad;
}

}  // namespace
}  // namespace ckv
