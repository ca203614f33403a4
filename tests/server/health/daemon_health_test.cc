// Goal: a daemon reports its own state to the directory and on its pages, and a directory notices a
// member that has a lease and does not answer.
// Method: probes that answer as the test sets; then a directory's and a process' facts.

#include "server/health/daemon_health.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/health/member_health.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

using std::chrono::seconds;

// Whether each address answers, and how often it was probed.
struct Network {
  std::map<std::string, bool> answers;
  std::map<std::string, int> requested;
};

class FakeProbe final : public MemberProbe {
 public:
  FakeProbe(Network* network, std::string address)
      : network_(*network), address_(std::move(address)) {}
  void Send() override {
    ++network_.requested[address_];
    if (network_.answers[address_]) ++count_;
  }
  uint64_t answer_count() const override { return count_; }

 private:
  Network& network_;
  const std::string address_;
  uint64_t count_ = 0;
};

class MemberProbesTest : public testing::Test {
 protected:
  MemberProbesTest() {
    DirectoryOptions options;
    options.clock = &clock_;
    options.lease_ttl_max = std::chrono::hours(1);
    state_ = std::make_unique<DirectoryState>(options);
    probes_ = std::make_unique<MemberProbes>(state_.get(), &clock_, [this](const std::string& at) {
      return std::make_unique<FakeProbe>(&network_, at);
    });
  }
  void Join(const std::string& name) {
    ASSERT_TRUE(state_
                    ->Register({.id = {name},
                                .role = MemberRole::kHolder,
                                .control_address = name + ":1",
                                .epoch = {}},
                               std::chrono::hours(1))
                    .ok());
  }
  void Pass(int count) {
    for (int i = 0; i < count; ++i) {
      clock_.Advance(seconds(1));
      probes_->Tick();
    }
  }
  bool IsSilent() { return state_->health().Facts().members.at(0).silence == Silence::kToProbe; }

  ManualClock clock_;
  Network network_;
  std::unique_ptr<DirectoryState> state_;
  std::unique_ptr<MemberProbes> probes_;
};

TEST_F(MemberProbesTest, AMemberThatAnswersIsNotSilent) {
  network_.answers["h0:1"] = true;
  Join("h0");
  Pass(60);
  EXPECT_FALSE(IsSilent());
  EXPECT_GE(network_.requested["h0:1"], 20);
  EXPECT_LE(network_.requested["h0:1"], 40);
}

TEST_F(MemberProbesTest, ADeafMemberIsFoundAndForgivenWhenItAnswers) {
  network_.answers["h0:1"] = true;
  Join("h0");
  Pass(5);
  network_.answers["h0:1"] = false;
  Pass(5);
  EXPECT_FALSE(IsSilent()) << "a busy host answers late";
  Pass(15);
  EXPECT_TRUE(IsSilent());
  network_.answers["h0:1"] = true;
  Pass(4);
  EXPECT_FALSE(IsSilent());
}

TEST_F(MemberProbesTest, AMemberThatNeverAnsweredMayBeBehindAFirewall) {
  Join("h0");
  Pass(60);
  EXPECT_FALSE(IsSilent());
}

TEST_F(MemberProbesTest, ANewIncarnationBeginsWithoutHistory) {
  network_.answers["h0:1"] = true;
  Join("h0");
  Pass(5);
  network_.answers["h0:1"] = false;
  Pass(20);
  ASSERT_TRUE(IsSilent());
  Join("h0");
  Pass(1);
  EXPECT_FALSE(IsSilent());
}

TEST(MemberHealth, AProcessReportsItsBuildItsClockAndItsFiles) {
  const MemberHealth health = ProcessHealth();
  EXPECT_FALSE(health.build.empty());
  EXPECT_GT(health.wall_clock_ms, uint64_t{1'600'000'000'000});
  EXPECT_GE(health.open_file_count, 3u);
  EXPECT_GT(health.wire_version_max, 0u);
  EXPECT_LE(health.wire_version_min, health.wire_version_max);
}

TEST(DaemonHealth, ADirectoryReportsOnTheFleetWithoutTheNamesOfTenants) {
  DirectoryOptions options;
  options.first_epoch = 1000;
  const auto opened = DurableDirectory::Open(options, {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  DirectoryState& state = (*opened)->state();
  const Corpus corpus = test::MakeTestCorpus(test::TestGeometry(), {5}, /*seed=*/3)
                            .Publish("secret", "acme", {{{"h0"}}});
  const auto published = state.Publish(corpus, false, 0);
  ASSERT_TRUE(published.ok()) << published.status();
  HealthParts parts;
  parts.directory = opened->get();
  parts.directory_address = [] { return std::string("10.0.0.1:7400"); };
  DaemonHealth health(std::move(parts));
  EXPECT_TRUE(health.Findings()->empty()) << "nothing was looked at";
  health.Tick();
  bool is_reported = false;
  for (const Finding& finding : *health.Findings()) {
    EXPECT_EQ((finding.subject + finding.what + finding.remedy).find("secret"), std::string::npos);
    is_reported |= finding.code == FindingCode::kCorpusChunksMissing;
  }
  EXPECT_TRUE(is_reported);
  ASSERT_EQ(health.Facts().corpora.size(), 1u);
  EXPECT_EQ(health.Facts().corpora[0].name, "secret") << "for the operator";
}

TEST(DaemonHealth, ALeaseIsRenewedWithWhatTheLastTickSaw) {
  const std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  HolderOptions options;
  options.id = {"h1"};
  options.capacity_bytes = 16u << 20;
  options.store_path = test::TempPath("looked_at");
  options.fabrics = {fabric.get()};
  const auto holder = Holder::Start(options);
  ASSERT_TRUE(holder.ok()) << holder.status();
  HealthParts parts;
  parts.store_path = options.store_path;
  parts.holder = holder->get();
  DaemonHealth health(std::move(parts));
  health.Tick();
  std::filesystem::remove_all(options.store_path);
  EXPECT_EQ(health.OfRole(MemberRole::kHolder).fault, StoreFault::kFailing);
  const MemberHealth reported = health.LastOfRole(MemberRole::kHolder);
  EXPECT_EQ(reported.fault, StoreFault::kNone) << "it does not look at the disk";
  EXPECT_TRUE(reported.is_durable);
}

TEST(DaemonHealth, ADirectoryWhoseFolderIsRemovedIsBroken) {
  ChangeLogOptions log;
  log.path = test::TempPath("removed");
  const auto opened = DurableDirectory::Open({}, log);
  ASSERT_TRUE(opened.ok()) << opened.status();
  HealthParts parts;
  parts.directory = opened->get();
  DaemonHealth health(std::move(parts));
  ASSERT_EQ(health.Facts().directory->refusal, "");
  std::filesystem::remove_all(log.path);
  const std::vector<Finding> findings = JudgeFleet(health.Facts());
  EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.code == FindingCode::kDirectoryRefusesChanges &&
           finding.severity == Severity::kBroken;
  }));
  // The directory acknowledges no corpus that it cannot store.
  const Corpus corpus =
      test::MakeTestCorpus(test::TestGeometry(), {5}, /*seed=*/3).Publish("c", "", {{{"h0"}}});
  EXPECT_TRUE(absl::IsUnavailable((*opened)->state().Publish(corpus, false, 0).status()));
}

}  // namespace
}  // namespace ckv
