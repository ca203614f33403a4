// Goal: each way in which a fleet can be broken is found, with its code and severity, and a healthy
// fleet of any shape has no finding.
// Method: a healthy fleet's facts; each row of a table changes them by one fault, and names the
// expected findings.

#include "proto/health/findings.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace ckv {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr uint64_t kGiB = uint64_t{1} << 30;

MemberFacts Holder(const std::string& name, bool durable = true) {
  MemberFacts holder;
  holder.name = name;
  holder.address = "10.0.0.1:7401";
  holder.placed_count = 10;
  MemberHealth& health = holder.health.emplace();
  health.chunk_count = 10;
  health.used_bytes = kGiB / 2;
  health.capacity_bytes = kGiB;
  health.is_durable = durable;
  if (durable) health.disk = {100 * kGiB, 200 * kGiB, false};
  health.open_file_count = 40;
  health.open_file_count_max = 1024;
  health.wall_clock_ms = 1;
  health.build = "0.1.0 (3bb4fde)";
  health.wire_version_min = 4;
  health.wire_version_max = 5;
  return holder;
}

MemberFacts RequesterMember(const std::string& name) {
  MemberFacts requester = Holder(name);
  requester.role = MemberRole::kRequester;
  requester.placed_count = 0;
  requester.health->chunk_count = requester.health->capacity_bytes = 0;
  requester.health->is_durable = false;
  requester.health->disk = {};
  return requester;
}

FleetFacts Healthy() {
  FleetFacts facts;
  DirectoryFacts& directory = facts.directory.emplace();
  directory.address = "10.0.0.1:7400";
  directory.path = "/var/lib/ckv/directory";
  directory.disk = {100 * kGiB, 200 * kGiB, false};
  directory.build = "0.1.0 (3bb4fde)";
  facts.members = {Holder("h1"), Holder("h2"), RequesterMember("r1")};
  facts.requester.emplace().address = "10.0.0.1:7402";
  facts.requester->directory_address = directory.address;
  return facts;
}

// "broken corpus-chunks-missing corpus gpl"
std::vector<std::string> Told(const FleetFacts& facts) {
  std::vector<std::string> reported;
  for (const Finding& finding : JudgeFleet(facts)) {
    if (finding.severity == Severity::kBroken) {
      EXPECT_NE(StatusOf(finding.code), absl::StatusCode::kOk) << CodeName(finding.code);
    }
    reported.push_back(std::string(SeverityName(finding.severity)) + " " +
                       std::string(CodeName(finding.code)) + " " + finding.subject);
    EXPECT_FALSE(finding.what.empty());
    EXPECT_FALSE(finding.remedy.empty());
  }
  return reported;
}

TEST(Findings, AHealthyFleetHasNone) {
  struct Shape {
    const char* name;
    std::function<void(FleetFacts&)> make;
  };
  const std::vector<Shape> shapes = {
      {"two holders and a requester", [](FleetFacts&) {}},
      {"a directory in memory",
       [](FleetFacts& f) { f.directory->path.clear(), f.directory->disk = {}; }},
      {"holders in memory",
       [](FleetFacts& f) {
         f.members = {Holder("h1", false), Holder("h2", false)};
       }},
      {"no requester was named", [](FleetFacts& f) { f.requester.reset(); }},
      {"a holder that has told nothing yet", [](FleetFacts& f) { f.members[0].health.reset(); }},
      {"a holder that reports its chunks just now",
       [](FleetFacts& f) { f.members[0].is_reporting = true; }},
      {"a holder with no chunks",
       [](FleetFacts& f) { f.members[0].placed_count = f.members[0].health->chunk_count = 0; }},
      {"more chunks than are placed: a load in progress",
       [](FleetFacts& f) { f.members[0].health->chunk_count = 99; }},
      {"a member that left on purpose",
       [](FleetFacts& f) {
         f.members.push_back(RequesterMember("r2"));
         f.members.back().has_lease = false;
         f.members.back().ended_ago = seconds(20);
       }},
      {"a requester that died long ago",
       [](FleetFacts& f) {
         f.members.push_back(RequesterMember("r2"));
         f.members.back().has_lease = false;
         f.members.back().ran_out = true;
         f.members.back().ended_ago = minutes(11);
       }},
      {"memory that is full of chunks of a disk",
       [](FleetFacts& f) { f.members[0].health->used_bytes = kGiB; }},
      {"a large disk that is 96 % full",
       [](FleetFacts& f) {
         f.members[0].health->disk = {40 * kGiB, 1000 * kGiB, false};
       }},
      {"a small disk that is half empty",
       [](FleetFacts& f) {
         f.directory->disk = {500 << 10, 1 << 20, false};
       }},
      {"clocks some seconds apart", [](FleetFacts& f) { f.members[0].clock_ahead = -seconds(4); }},
      {"no limit of descriptors",
       [](FleetFacts& f) { f.members[0].health->open_file_count_max = 0; }},
      {"overlapping wire versions",
       [](FleetFacts& f) { f.members[2].health->wire_version_max = 9; }},
      {"one process that tells of itself",
       [](FleetFacts& f) {
         f.directory.reset();
         f.requester.reset();
         f.members = {Holder("h1")};
       }},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.name);
    FleetFacts facts = Healthy();
    shape.make(facts);
    EXPECT_EQ(Told(facts), std::vector<std::string>());
    EXPECT_TRUE(StatusOf(JudgeFleet(facts)).ok());
    EXPECT_FALSE(AnyBroken(JudgeFleet(facts)));
  }
}

struct Fault {
  std::vector<std::string> reported;
  std::function<void(FleetFacts&)> make;
};

void ExpectReported(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.reported.front());
    FleetFacts facts = Healthy();
    fault.make(facts);
    EXPECT_EQ(Told(facts), fault.reported);
    const bool broken = fault.reported.front().starts_with("broken");
    EXPECT_EQ(AnyBroken(JudgeFleet(facts)), broken);
    EXPECT_EQ(StatusOf(JudgeFleet(facts)).ok(), !broken);
  }
}

TEST(Findings, CoverTheDirectory) {
  ExpectReported({
      {{"broken directory-unreachable directory 10.0.0.1:7400"},
       [](FleetFacts& f) {
         f.directory->silence_why = "connection refused";
         f.members.clear();
       }},
      {{"broken directory-refuses-changes directory 10.0.0.1:7400"},
       [](FleetFacts& f) { f.directory->refusal = "No space left on device"; }},
      {{"broken directory-disk-full directory 10.0.0.1:7400"},
       [](FleetFacts& f) { f.directory->disk.free_bytes = 0; }},
      {{"broken directory-disk-full directory 10.0.0.1:7400"},
       [](FleetFacts& f) { f.directory->disk.read_only = true; }},
      {{"warning disk-low directory 10.0.0.1:7400"},
       [](FleetFacts& f) {
         f.directory->disk = {kGiB / 4, 20 * kGiB, false};
       }},
      {{"broken corpus-unproven corpus gpl"},
       [](FleetFacts& f) {
         f.directory->unproven_count = 1;
         f.directory->unproven = {{"gpl", "", 11, 3, false, ""}};
       }},
      {{"broken corpus-unproven corpus gpl of tenant acme"},
       [](FleetFacts& f) {
         f.directory->unproven_count = 1;
         f.directory->unproven = {{"gpl", "acme", 11, 0, true, "h1 and h2 differ"}};
       }},
      {{"broken corpus-unproven corpus gpl", "broken corpus-unproven directory 10.0.0.1:7400"},
       [](FleetFacts& f) {
         f.directory->unproven_count = 70;
         f.directory->unproven = {{"gpl", "", 11, 3, false, ""}};
       }},
      {{"warning directory-learning directory 10.0.0.1:7400"},
       [](FleetFacts& f) { f.directory->learns_for = seconds(8); }},
      {{"broken directory-no-leader directory 10.0.0.1:7400"},
       [](FleetFacts& f) {
         f.directory->is_shared = f.directory->has_no_leader = true;
         f.directory->refusal = "etcd has no leader";  // named by the finding, and no other one
       }},
      {{"broken directory-refuses-changes directory 10.0.0.1:7400"},
       [](FleetFacts& f) {
         f.directory->is_shared = true;
         f.directory->refusal = "etcdserver: mvcc: database space exceeded";
       }},
      {{"warning directory-old-copy directory 10.0.0.1:7400"},
       [](FleetFacts& f) { f.directory->old_copy = "h1 has seen change 7"; }},
      {{"warning holder-returning directory 10.0.0.1:7400"},
       [](FleetFacts& f) {
         f.directory->missing_holder_count = 1;
         f.directory->missing_holders = {"h9"};
         f.replication.under_replicated_count = 1;
       }},
      {{"broken no-holder directory 10.0.0.1:7400"},
       [](FleetFacts& f) { f.members.erase(f.members.begin(), f.members.begin() + 2); }},
      {{"warning corpora-skipped directory 10.0.0.1:7400"},
       [](FleetFacts& f) { f.skipped_corpus_count = 2; }},
      {{"warning chunks-under-replicated directory 10.0.0.1:7400"},
       [](FleetFacts& f) { f.replication.under_replicated_count = 1; }},
      {{"warning copies-stuck directory 10.0.0.1:7400"},
       [](FleetFacts& f) {
         f.replication.stuck_count = 1;
         f.replication.stuck_why = "corpus docs, chunk 01: no live holder has it";
       }},
  });
}

TEST(Findings, CoverTheNamedRequester) {
  ExpectReported({
      {{"broken requester-unreachable requester 10.0.0.1:7402"},
       [](FleetFacts& f) { f.requester->silence_why = "connection refused"; }},
      {{"broken requester-other-fleet requester 10.0.0.1:7402"},
       [](FleetFacts& f) { f.requester->is_of_fleet = false; }},
      {{"warning requester-without-directory requester 10.0.0.1:7402"},
       [](FleetFacts& f) { f.requester->hears_directory = false; }},
  });
}

TEST(Findings, CoverMembers) {
  ExpectReported({
      {{"broken member-unreachable holder h1"},
       [](FleetFacts& f) { f.members[0].silence = Silence::kToCaller; }},
      {{"broken member-unreachable holder h1"},
       [](FleetFacts& f) { f.members[0].silence = Silence::kToProbe; }},
      {{"broken member-unreachable requester r1"},
       [](FleetFacts& f) { f.members[2].silence = Silence::kToProbe; }},
      {{"broken holder-refuses holder h1"}, [](FleetFacts& f) { f.members[0].refuses = true; }},
      {{"broken holder-unreached holder h2"},
       [](FleetFacts& f) {
         f.members[2].health->unreached = {"h2", "gone"};
       }},
      {{"warning member-lost holder h1"},
       [](FleetFacts& f) {
         f.members[0].has_lease = false;
         f.members[0].ran_out = true;
         f.members[0].ended_ago = std::chrono::hours(3);
       }},
      {{"warning member-lost holder h1"},
       [](FleetFacts& f) { f.members[0].has_lease = false; }},  // given back, and named by corpora
      {{"warning member-lost requester r1"},
       [](FleetFacts& f) {
         f.members[2].has_lease = false;
         f.members[2].ran_out = true;
         f.members[2].ended_ago = seconds(5);
       }},
      {{"warning descriptors-low requester r1"},
       [](FleetFacts& f) { f.members[2].health->open_file_count = 1000; }},
      {{"warning clock-off holder h1"},
       [](FleetFacts& f) { f.members[0].clock_ahead = -std::chrono::hours(1); }},
      {{"warning clock-off requester r1"},
       [](FleetFacts& f) { f.members[2].clock_ahead = seconds(40); }},
      {{"warning builds-mixed fleet"},
       [](FleetFacts& f) { f.members[0].health->build = "0.1.0 (aaaaaaa)"; }},
      {{"broken wire-mismatch requester r1"},
       [](FleetFacts& f) { f.members[1].health->wire_version_max = 3; }},
  });
}

TEST(Findings, CoverStores) {
  ExpectReported({
      {{"broken holder-store-full holder h1"},
       [](FleetFacts& f) {
         f.members[0].health->fault = StoreFault::kFull;
         f.members[0].health->fault_text = "No space left on device";
       }},
      {{"broken holder-store-full holder h1"},
       [](FleetFacts& f) { f.members[0].health->disk.free_bytes = 0; }},
      {{"broken holder-store-failing holder h1"},
       [](FleetFacts& f) {
         f.members[0].health->fault = StoreFault::kFailing;
         f.members[0].health->fault_text = "Input/output error";
       }},
      {{"broken holder-store-failing holder h1"},
       [](FleetFacts& f) { f.members[0].health->disk.read_only = true; }},
      {{"broken holder-unreadable-chunks holder h1"},
       [](FleetFacts& f) { f.members[0].health->unreadable_count = 1; }},
      {{"broken holder-store-full holder h1", "broken holder-store-full holder h2",
        "broken no-room directory 10.0.0.1:7400"},
       [](FleetFacts& f) {
         f.members[0].health->fault = f.members[1].health->fault = StoreFault::kFull;
       }},
      {{"broken no-room directory 10.0.0.1:7400", "warning memory-full holder h1",
        "warning memory-full holder h2"},
       [](FleetFacts& f) {
         f.members[0] = Holder("h1", false);
         f.members[1] = Holder("h2", false);
         f.members[0].health->used_bytes = f.members[1].health->used_bytes = kGiB;
       }},
      {{"warning disk-low holder h1"},
       [](FleetFacts& f) {
         f.members[0].health->disk = {kGiB / 4, 20 * kGiB, false};
       }},
      {{"warning memory-full holder h1"},
       [](FleetFacts& f) {
         f.members[0] = Holder("h1", false);
         f.members[0].health->used_bytes = kGiB;
       }},
  });
}

TEST(Findings, CoverChunks) {
  ExpectReported({
      {{"broken holder-lacks-chunks holder h1"},
       [](FleetFacts& f) { f.members[0].lacking_count = f.members[0].sole_count = 4; }},
      {{"warning holder-lacks-chunks holder h1"},
       [](FleetFacts& f) { f.members[0].lacking_count = 4; }},
      {{"broken corpus-chunks-missing corpus gpl"},
       [](FleetFacts& f) {
         f.corpora = {{"gpl", "", 10, 4, 4, {"h3"}, {}}};
       }},
      {{"warning corpus-copies-missing corpus gpl of tenant acme"},
       [](FleetFacts& f) {
         f.corpora = {{"gpl", "acme", 10, 0, 1, {}, {"h1"}}};
       }},
  });
}

// Nothing that a member without a lease has reported still holds.
TEST(Findings, ForgetReportsOfGoneMembers) {
  FleetFacts facts = Healthy();
  MemberFacts& gone = facts.members[0];
  gone.health->fault = StoreFault::kFull;
  gone.health->build = "another";
  gone.health->unreached = {"h2"};
  gone.lacking_count = gone.sole_count = 3;
  gone.silence = Silence::kToProbe;
  gone.has_lease = false;
  EXPECT_EQ(Told(facts), std::vector<std::string>{"warning member-lost holder h1"});
}

TEST(Findings, TheFirstBrokenOneDecidesTheStatus) {
  FleetFacts facts = Healthy();
  facts.skipped_corpus_count = 1;
  facts.members[1].health->fault = StoreFault::kFull;
  facts.corpora = {{"gpl", "", 10, 4, 4, {}, {"h1"}}};
  const std::vector<Finding> findings = JudgeFleet(facts);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].code, FindingCode::kCorpusChunksMissing);
  EXPECT_EQ(findings[2].severity, Severity::kWarning);
  const absl::Status status = StatusOf(findings);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message().substr(0, 21), "2 problems, 1 warning") << status;
}

TEST(Findings, ARemedyWhileTheDirectoryLearnsIsToWait) {
  FleetFacts facts = Healthy();
  facts.directory->unproven_count = 1;
  facts.directory->unproven = {{"gpl", "", 11, 0, false, ""}};
  facts.directory->learns_for = seconds(7);
  const std::vector<Finding> learning = JudgeFleet(facts);
  ASSERT_EQ(learning.size(), 1u);
  EXPECT_EQ(learning[0].remedy.substr(0, 10), "wait 7.0 s") << learning[0].remedy;
  facts.directory->learns_for = Duration(0);
  EXPECT_EQ(JudgeFleet(facts)[0].remedy.substr(0, 17), "start the holders");
}

TEST(Findings, AHolderOnItsWayBackIsWaitedForFirst) {
  FleetFacts facts = Healthy();
  facts.corpora = {{"gpl", "", 10, 4, 4, {"h3"}, {}}};
  EXPECT_EQ(JudgeFleet(facts)[0].remedy.substr(0, 9), "start h3,");
  facts.directory->missing_holder_count = 1;
  facts.directory->missing_holders = {"h3"};
  EXPECT_EQ(JudgeFleet(facts)[0].remedy.substr(0, 18), "wait some seconds ");
}

TEST(Findings, EqualFactsGiveEqualFindingsInAnyOrder) {
  FleetFacts facts = Healthy();
  facts.members[0].silence = Silence::kToProbe;
  facts.members[1].health->fault = StoreFault::kFull;
  facts.corpora = {{"b", "", 10, 4, 4, {}, {}}, {"a", "", 10, 4, 4, {}, {}}};
  const std::vector<Finding> findings = JudgeFleet(facts);
  EXPECT_EQ(findings, JudgeFleet(facts));
  std::swap(facts.members[0], facts.members[1]);
  std::swap(facts.corpora[0], facts.corpora[1]);
  EXPECT_EQ(findings, JudgeFleet(facts));
}

TEST(Findings, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kFindingCodeCount; ++i) {
    const auto code = static_cast<FindingCode>(i);
    EXPECT_TRUE(names.insert(CodeName(code)).second) << CodeName(code);
    EXPECT_EQ(CodeName(code).find_first_not_of("abcdefghijklmnopqrstuvwxyz-"),
              std::string_view::npos);
    EXPECT_FALSE(Meaning(code).empty());
  }
}

TEST(Findings, AreCountedByCode) {
  FleetFacts facts = Healthy();
  facts.corpora = {
      {"a", "", 10, 4, 4, {}, {}}, {"b", "", 10, 4, 4, {}, {}}, {"c", "", 1, 0, 1, {}, {}}};
  const std::vector<FindingCount> counts = CountByCode(JudgeFleet(facts));
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts[0].code, FindingCode::kCorpusChunksMissing);
  EXPECT_EQ(counts[0].count, 2u);
  EXPECT_EQ(counts[1].severity, Severity::kWarning);
}

}  // namespace
}  // namespace ckv
