// Goal: the small parts that every fabric is made of: names, identity, notes, invitations, sockets.
// Method: each alone, against its header.

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/host/platform.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"
#include "transport/handshake.h"
#include "transport/scatter_list.h"
#include "transport/slots.h"
#include "transport/socket.h"
#include "transport/thread_role.h"

namespace ckv {
namespace {

using absl::StatusCode;

TEST(Fabric, NamesConvertBothWays) {
  for (FabricKind kind :
       {FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp, FabricKind::kVerbs}) {
    const absl::StatusOr<FabricKind> parsed = ParseFabricName(FabricName(kind));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, kind);
  }
  EXPECT_EQ(FabricName(static_cast<FabricKind>(9)), "unknown");
  const absl::Status status = ParseFabricName("rdma").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("verbs"), std::string::npos);
}

TEST(Fabric, HostIdentityIsStable) {
  EXPECT_EQ(HostIdentity(), HostIdentity());
  EXPECT_GT(HostIdentity().size(), 36u);  // a boot id and more
  EXPECT_LE(EncodeOffer(FabricKind::kShm, HostIdentity()).size(), kOfferBytesMax);
}

TEST(Fabric, DefaultShapeHoldsItsStatedSizes) {
  const LaneShape shape;
  EXPECT_TRUE(ValidateLaneShape(shape).ok());
  EXPECT_GE(shape.request_bytes_max, 64 + 256 * 1152u);
  EXPECT_GE(shape.reply_bytes_max, 64 + 256 * 2056u);
}

TEST(ScatterList, BytesAreTakenFromTheFront) {
  std::vector<std::byte> memory(10);
  const std::span<std::byte> bytes(memory);
  ScatterList list(bytes.first(4));
  EXPECT_TRUE(list.Add({}));
  EXPECT_TRUE(list.Add(bytes.subspan(7)));
  ASSERT_EQ(list.spans().size(), 2u);
  EXPECT_EQ(list.bytes(), 7u);
  const ScatterList front = list.TakeFront(5);
  ASSERT_EQ(front.spans().size(), 2u);
  EXPECT_EQ(front.spans()[0].data(), &memory[0]);
  EXPECT_EQ(front.spans()[1].data(), &memory[7]);
  EXPECT_EQ(front.bytes(), 5u);
  ASSERT_EQ(list.spans().size(), 1u);
  EXPECT_EQ(list.spans()[0].data(), &memory[8]);
  EXPECT_TRUE(list.TakeFront(0).empty());
  EXPECT_EQ(list.TakeFront(2).bytes(), 2u);
  EXPECT_TRUE(list.empty());
}

TEST(ScatterList, IsOfSoManySpans) {
  std::vector<std::byte> memory(ScatterList::kSpanCountMax + 1);
  ScatterList list;
  for (size_t i = 0; i < ScatterList::kSpanCountMax; ++i)
    EXPECT_TRUE(list.Add(std::span(memory).subspan(i, 1)));
  EXPECT_FALSE(list.Add(std::span(memory).last(1)));
  EXPECT_EQ(list.bytes(), ScatterList::kSpanCountMax);
}

TEST(Notes, RoundTrip) {
  const Answer answer = {RandomInvitationKey(), "host:1"};
  const auto decoded = DecodeAnswer(FabricKind::kTcp, EncodeAnswer(FabricKind::kTcp, answer));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->key.id, answer.key.id);
  EXPECT_TRUE(SameToken(decoded->key.token, answer.key.token));
  EXPECT_EQ(decoded->address, "host:1");
  EXPECT_EQ(DecodeAnswer(FabricKind::kShm, EncodeAnswer(FabricKind::kTcp, answer)).status().code(),
            StatusCode::kInvalidArgument);
  const auto offer = DecodeOffer(FabricKind::kShm, EncodeOffer(FabricKind::kShm, "here"));
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(*offer, "here");
}

// Every single-bit flip either is refused or changes only the value it is in: kind, key or text.
TEST(Notes, FlippedBitsDoNoHarm) {
  const std::string note = EncodeAnswer(FabricKind::kTcp, {RandomInvitationKey(), "host:1"});
  for (size_t bit = 0; bit < 8 * 8; ++bit) {
    std::string bad = note;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeAnswer(FabricKind::kTcp, bad).ok()) << "bit " << bit;
  }
}

TEST(Tokens, AreRandomAndComparedWhole) {
  std::set<uint64_t> words;
  for (int i = 0; i < 100; ++i) words.insert(RandomWord());
  EXPECT_EQ(words.size(), 100u);
  const Token token = RandomInvitationKey().token;
  for (size_t i = 0; i < token.size(); ++i) {
    Token other = token;
    other[i] ^= 0x80;
    EXPECT_FALSE(SameToken(token, other));
  }
  EXPECT_TRUE(SameToken(token, token));
}

TEST(Invitations, AreTakenOnceByTheHolderOfTheToken) {
  InvitationTable<std::string> table;
  const auto key = table.Add("lane", Instant{1}, Instant{10});
  ASSERT_TRUE(key.ok());
  InvitationKey wrong = *key;
  wrong.token[0] ^= 1;
  EXPECT_FALSE(table.Take(wrong, Instant{2}).has_value());
  wrong = *key;
  wrong.id += 1;
  EXPECT_FALSE(table.Take(wrong, Instant{2}).has_value());
  EXPECT_EQ(table.Take(*key, Instant{9}), "lane");
  EXPECT_FALSE(table.Take(*key, Instant{9}).has_value());
}

TEST(Invitations, ExpireAndAreBounded) {
  InvitationTable<std::shared_ptr<int>> table;
  const auto resource = std::make_shared<int>(1);
  const auto early = table.Add(resource, Instant{1}, Instant{10});
  ASSERT_TRUE(early.ok());
  EXPECT_FALSE(table.Take(*early, Instant{10}).has_value());
  EXPECT_EQ(resource.use_count(), 1);  // freed with the invitation
  for (size_t i = 0; i < kInvitationCountMax; ++i) {
    ASSERT_TRUE(table.Add(resource, Instant{1}, Instant{10 + static_cast<int64_t>(i % 2)}).ok());
  }
  EXPECT_EQ(table.Add(resource, Instant{1}, Instant{10}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(table.Add(resource, Instant{10}, Instant{20}).ok());  // half of them expired
}

TEST(Sockets, DescriptorsArriveOneAtATime) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  UniqueFd a(ends[0]), b(ends[1]);
  const uint64_t word = 5;
  uint64_t got = 0;
  ASSERT_TRUE(SendWithFd(a.get(), BytesOf(word), a.get()));
  auto fd = ReceiveAllWithFd(b.get(), WritableBytesOf(got), *Clock::Real(), test::Soon());
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(got, word);
  EXPECT_GE(fd->get(), 0);
  fd->Reset();  // it keeps this end open
  // None.
  ASSERT_TRUE(SendAll(a.get(), BytesOf(word), *Clock::Real(), test::Soon()).ok());
  EXPECT_EQ(
      ReceiveAllWithFd(b.get(), WritableBytesOf(got), *Clock::Real(), test::Soon()).status().code(),
      StatusCode::kInvalidArgument);
  // Several, in two messages of half the bytes: both closed again.
  ASSERT_TRUE(SendWithFd(a.get(), BytesOf(word).first(4), a.get()));
  ASSERT_TRUE(SendWithFd(a.get(), BytesOf(word).first(4), a.get()));
  EXPECT_EQ(
      ReceiveAllWithFd(b.get(), WritableBytesOf(got), *Clock::Real(), test::Soon()).status().code(),
      StatusCode::kInvalidArgument);
  a.Reset();
  EXPECT_EQ(
      ReceiveAllWithFd(b.get(), WritableBytesOf(got), *Clock::Real(), test::Soon()).status().code(),
      StatusCode::kUnavailable);
}

TEST(Sockets, WaitsEndAtTheDeadline) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  UniqueFd a(ends[0]), b(ends[1]);
  uint64_t got = 0;
  const Instant deadline = Clock::Real()->Now() + std::chrono::milliseconds(5);
  EXPECT_EQ(ReceiveAll(b.get(), WritableBytesOf(got), *Clock::Real(), deadline).code(),
            StatusCode::kDeadlineExceeded);
}

// Any number a peer can send is an answer, never a crash.
TEST(Slots, PeersCannotCorruptTheBookkeeping) {
  RequesterSlots requester(2);
  EXPECT_EQ(requester.Complete(0), RequesterSlots::Reply::kBogus);
  EXPECT_EQ(requester.Complete(2), RequesterSlots::Reply::kBogus);
  EXPECT_EQ(requester.Complete(0xffffffff), RequesterSlots::Reply::kBogus);
  const uint32_t slot = *requester.Acquire();
  EXPECT_EQ(requester.Complete(slot), RequesterSlots::Reply::kBogus);
  requester.Post(slot);
  EXPECT_EQ(requester.Complete(slot), RequesterSlots::Reply::kDeliver);
  EXPECT_EQ(requester.Complete(slot), RequesterSlots::Reply::kBogus);
  requester.Release(slot);
  HolderSlots holder(2);
  EXPECT_TRUE(holder.Arrive(1));
  EXPECT_FALSE(holder.Arrive(1));
  EXPECT_FALSE(holder.Arrive(2));
  EXPECT_FALSE(holder.Arrive(0xffffffff));
  holder.Post(1);
  EXPECT_TRUE(holder.Arrive(1));
}

TEST(ThreadRole, IsHeldByWhoClaimedIt) {
  ThreadRole role;
  role.Claim();
  role.AssertHeld();
  std::thread other([&] {
    role.Claim();
    role.AssertHeld();
  });
  other.join();
}

// Release builds have no check, so that it may be on the hot path.
TEST(ThreadRoleDeathTest, BelongsToTheThreadThatUsesItFirst) {
  ThreadRole role;
  role.ClaimOrAssertHeld();
  role.ClaimOrAssertHeld();
#ifdef CKV_CHECK_THREADS
  EXPECT_DEATH(std::thread([&] { role.ClaimOrAssertHeld(); }).join(), "owner_");
#else
  std::thread([&] { role.ClaimOrAssertHeld(); }).join();
#endif
}

}  // namespace
}  // namespace ckv
