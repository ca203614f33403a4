// Goal: facts of health survive the wire, and nothing that a peer says of itself breaks a reader.
// Method: facts with every field set, there and back; then texts and numbers that no member sends.

#include "client/grpc/health_convert.h"

#include <string>

#include "gtest/gtest.h"

namespace ckv {
namespace {

MemberHealth FullHealth() {
  MemberHealth health;
  health.chunk_count = 1;
  health.used_bytes = 2;
  health.capacity_bytes = 3;
  health.is_durable = true;
  health.disk = {4, 5, true};
  health.fault = StoreFault::kFailing;
  health.fault_text = "Input/output error";
  health.unreadable_count = 6;
  health.repair_pending_count = 7;
  health.open_file_count = 8;
  health.open_file_count_max = 9;
  health.wall_clock_ms = 10;
  health.unreached = {"h1", "h2"};
  health.build = "0.1.0 (3bb4fde)";
  health.wire_version_min = 4;
  health.wire_version_max = 5;
  return health;
}

TEST(HealthConvert, RoundTripsAMembersHealth) {
  const MemberHealth health = FullHealth();
  const v1::MemberHealth message = ToProto(health);
  EXPECT_EQ(ToProto(FromProto(message)).SerializeAsString(), message.SerializeAsString());
  const MemberHealth back = FromProto(message);
  EXPECT_EQ(back.fault, health.fault);
  EXPECT_EQ(back.unreached, health.unreached);
  EXPECT_TRUE(back.disk.read_only);
}

TEST(HealthConvert, RoundTripsFactsOfADirectory) {
  FleetFacts facts;
  facts.directory.emplace();
  facts.directory->disk = {1, 2, true};
  facts.directory->learns_for = std::chrono::seconds(3);
  MemberFacts& member = facts.members.emplace_back();
  member.name = "h1";
  member.address = "10.0.0.1:7401";
  member.epoch = 7;
  member.silence = Silence::kToProbe;
  member.silence_why = "no answer";
  member.health = FullHealth();
  member.clock_ahead = -std::chrono::hours(1);
  member.placed_count = 5;
  member.lacking_count = 4;
  member.sole_count = 3;
  member.is_reporting = true;
  facts.corpora = {{"docs", "acme", 10, 2, 3, {"h2"}, {"h1"}}};
  facts.skipped_corpus_count = 6;
  v1::DescribeDirectoryReply reply;
  AddFacts(facts, reply);
  const absl::StatusOr<FleetFacts> back = FactsFrom(reply);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->directory->learns_for, std::chrono::seconds(3));
  ASSERT_EQ(back->members.size(), 1u);
  EXPECT_EQ(back->members[0].silence, Silence::kToProbe);
  EXPECT_EQ(back->members[0].clock_ahead, -std::chrono::hours(1));
  EXPECT_EQ(back->members[0].sole_count, 3u);
  EXPECT_EQ(back->members[0].epoch, 7u);
  ASSERT_TRUE(back->members[0].health.has_value());
  ASSERT_EQ(back->corpora.size(), 1u);
  EXPECT_EQ(back->corpora[0].tenant, "acme");
  EXPECT_EQ(back->corpora[0].missing_copy_count, 3u);
  EXPECT_EQ(back->corpora[0].lackers, std::vector<std::string>{"h1"});
  EXPECT_EQ(back->skipped_corpus_count, 6u);
}

TEST(HealthConvert, TextsOfPeersAreCutAndCleaned) {
  v1::MemberHealth message;
  message.set_fault_text(std::string(10'000, 'a') + "\x1b[2J");
  message.set_build("0.1\n\x1b");
  for (int i = 0; i < 100; ++i) message.add_unreached("h");
  message.set_fault(static_cast<v1::StoreFault>(77));
  const MemberHealth health = FromProto(message);
  EXPECT_LE(health.fault_text.size(), 512u);
  EXPECT_EQ(health.build, "0.1??");
  EXPECT_EQ(health.unreached.size(), MemberHealth::kUnreachedCountMax);
  EXPECT_EQ(health.fault, StoreFault::kFailing) << "a fault of a later build is a fault";
}

// A message with other text is not read: a holder whose disk is full would lose its lease.
TEST(HealthConvert, TextOfAnyBytesArrives) {
  MemberHealth health = FullHealth();
  for (const std::string& text : {std::string("writing /data/\xff/new/0: No space left on device"),
                                  std::string(511, 'a') + "\xc3\xb6 is cut"}) {
    health.fault_text = text;
    v1::MemberHealth read;
    ASSERT_TRUE(read.ParseFromString(ToProto(health).SerializeAsString())) << text;
    EXPECT_FALSE(read.fault_text().empty());
    // As a directory passes it on.
    EXPECT_TRUE(read.ParseFromString(ToProto(FromProto(read)).SerializeAsString())) << text;
  }
}

TEST(HealthConvert, NumbersBeyondADurationAreBounded) {
  v1::DescribeDirectoryReply reply;
  reply.set_learns_for_ms(UINT64_MAX);
  v1::MemberFacts& member = *reply.add_members();
  member.mutable_member()->set_id("h1");
  member.mutable_member()->set_role(v1::MEMBER_ROLE_HOLDER);
  member.mutable_member()->set_control_address("h1:1");
  member.set_clock_ahead_ms(INT64_MIN);
  member.set_ended_ago_ms(UINT64_MAX);
  const absl::StatusOr<FleetFacts> facts = FactsFrom(reply);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_GT(facts->directory->learns_for, Duration(0));
  EXPECT_LT(facts->members[0].clock_ahead, Duration(0));
  EXPECT_GT(facts->members[0].ended_ago, Duration(0));
  member.mutable_member()->set_id("");
  EXPECT_FALSE(FactsFrom(reply).ok());
}

}  // namespace
}  // namespace ckv
