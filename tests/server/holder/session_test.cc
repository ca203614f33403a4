#include "server/session/session.h"

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using std::chrono::seconds;

constexpr uint64_t kNoLimit = uint64_t{1} << 40;

ChunkId IdOf(uint32_t value) {
  ChunkId id;
  std::memcpy(id.bytes.data(), &value, sizeof(value));
  return id;
}

SessionOffer Offer() {
  SessionOffer offer;
  offer.geometry = test::TestGeometry();
  offer.tenant = "red";
  offer.requester = "engine-0";
  offer.shape = {.slot_count = 4, .request_bytes_max = 1024, .reply_bytes_max = 1024};
  return offer;
}

TEST(HandleTable, GivesOneHandleAChunkAndNeverZero) {
  HandleTable handles;
  EXPECT_FALSE(handles.Lookup({0}).has_value());
  EXPECT_FALSE(handles.Lookup({1}).has_value());
  EXPECT_FALSE(handles.Lookup({UINT32_MAX}).has_value());
  const auto a = handles.Assign(IdOf(1), {.slot = 7, .generation = 3});
  const auto b = handles.Assign(IdOf(2), {.slot = 8, .generation = 1});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->value, 0u);
  EXPECT_NE(a->value, b->value);
  EXPECT_EQ(handles.Lookup(*a)->slot, 7u);
  EXPECT_EQ(handles.Lookup(*a)->generation, 3u);
  // Dropped and put again: the same handle, the new place.
  EXPECT_EQ(*handles.Assign(IdOf(1), {.slot = 9, .generation = 4}), *a);
  EXPECT_EQ(handles.Lookup(*a)->slot, 9u);
  EXPECT_EQ(handles.size(), 2u);
}

// Goal: a look-up never sees a place half written or a segment not yet there.
// Method: one thread assigns through several segments, another looks up whatever is published.
TEST(HandleTable, LooksUpWhileAnotherThreadAssigns) {
  HandleTable handles;
  constexpr uint32_t kCount = 20'000;
  std::thread writer([&] {
    for (uint32_t i = 1; i <= kCount; ++i) {
      ASSERT_TRUE(handles.Assign(IdOf(i), {.slot = i, .generation = ~i}).ok());
    }
  });
  for (uint32_t seen = 0; seen < kCount;) {
    seen = handles.size();
    if (seen == 0) continue;
    const auto place = handles.Lookup({seen});
    ASSERT_TRUE(place.has_value());
    ASSERT_EQ(place->slot, seen);
    ASSERT_EQ(place->generation, ~seen);
  }
  writer.join();
}

TEST(SessionTable, IdsAreRandomAndSessionsBounded) {
  SessionTable table(3, kNoLimit);
  std::set<uint64_t> ids;
  for (int i = 0; i < 3; ++i) {
    const auto session = table.Open(Offer(), 1, {5}, kInstantMax);
    ASSERT_TRUE(session.ok());
    ids.insert(session->id.value);
  }
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_GT(*ids.rbegin(), uint64_t{1} << 32) << "three of 64 random bits, all below 2^32";
  EXPECT_TRUE(absl::IsResourceExhausted(table.Open(Offer(), 1, {5}, kInstantMax).status()));
  EXPECT_EQ(table.count(), 3u);
}

TEST(SessionTable, LaneMemoryIsBounded) {
  SessionTable table(100, /*lane_bytes_max=*/4 * 2048 * 3);
  const auto first = table.Open(Offer(), 2, {5}, kInstantMax);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.Open(Offer(), 2, {5}, kInstantMax).status()));
  EXPECT_TRUE(table.Open(Offer(), 1, {5}, kInstantMax).ok());
  ASSERT_TRUE(table.Close(first->id).ok());
  table.Reap({1});
  EXPECT_TRUE(table.Open(Offer(), 2, {5}, kInstantMax).ok());
}

TEST(SessionTable, EndsWhenAllItsLanesAreGone) {
  ManualClock clock;
  SessionTable table(10, kNoLimit);
  const auto opened = table.Open(Offer(), 2, {5}, clock.Now() + seconds(9));
  ASSERT_TRUE(opened.ok());
  Session* session = table.Adopt(SessionTable::LaneTag(*opened, 0));
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->id, opened->id);
  EXPECT_EQ(session->tenant, "red");
  // One lane was adopted and closed; the other may still connect, until the invitation runs out.
  table.LaneGone(*session);
  EXPECT_EQ(table.Reap(clock.Now()), clock.Now() + seconds(9));
  EXPECT_EQ(table.count(), 1u);
  ASSERT_EQ(table.Adopt(SessionTable::LaneTag(*opened, 1)), session);
  EXPECT_EQ(table.Reap(clock.Now() + seconds(60)), kInstantMax);
  EXPECT_EQ(table.count(), 1u) << "a lane lives";
  table.LaneGone(*session);
  table.Reap(clock.Now());
  EXPECT_EQ(table.count(), 0u);
  EXPECT_EQ(table.Adopt(SessionTable::LaneTag(*opened, 1)), nullptr);
}

TEST(SessionTable, EndsIfTheInvitationIsNotTaken) {
  ManualClock clock;
  SessionTable table(10, kNoLimit);
  ASSERT_TRUE(table.Open(Offer(), 2, {5}, clock.Now() + seconds(9)).ok());
  clock.Advance(seconds(9));
  table.Reap(clock.Now());
  EXPECT_EQ(table.count(), 0u);
}

TEST(SessionTable, AClosedSessionIsNotFound) {
  SessionTable table(10, kNoLimit);
  const auto opened = table.Open(Offer(), 1, {5}, kInstantMax);
  ASSERT_TRUE(opened.ok());
  Session* session = table.Adopt(SessionTable::LaneTag(*opened, 0));
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(*table.GeometryOf(opened->id), test::TestGeometry());
  EXPECT_EQ(*table.TenantOf(opened->id), session->tenant);
  ASSERT_TRUE(table.Close(opened->id).ok());
  EXPECT_TRUE(session->closed());
  EXPECT_TRUE(absl::IsNotFound(table.Close(opened->id)));
  EXPECT_TRUE(absl::IsNotFound(table.GeometryOf(opened->id).status()));
  EXPECT_TRUE(absl::IsNotFound(table.TenantOf(opened->id).status()));
  EXPECT_TRUE(absl::IsNotFound(table.AssignHandles(opened->id, {}).status()));
  EXPECT_EQ(table.Adopt(SessionTable::LaneTag(*opened, 0)), nullptr);
  // It stays in memory until the dispatcher has dropped its lanes.
  table.Reap({1});
  EXPECT_EQ(session->requester, "engine-0");
  table.LaneGone(*session);
  table.Reap({1});
}

TEST(SessionTable, HandlesBelongToOneSession) {
  SessionTable table(10, kNoLimit);
  const auto a = table.Open(Offer(), 1, {5}, kInstantMax);
  const auto b = table.Open(Offer(), 1, {5}, kInstantMax);
  const std::vector<SessionTable::Found> found = {{IdOf(1), {1, 1}}, {IdOf(2), {2, 1}}};
  ASSERT_TRUE(a.ok() && b.ok() && table.AssignHandles(a->id, found).ok());
  Session* session_a = table.Adopt(SessionTable::LaneTag(*a, 0));
  Session* session_b = table.Adopt(SessionTable::LaneTag(*b, 0));
  EXPECT_TRUE(session_a->handles.Lookup({1}).has_value());
  EXPECT_FALSE(session_b->handles.Lookup({1}).has_value());
}

}  // namespace
}  // namespace ckv
