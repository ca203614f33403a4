// Goal: each host has paths of its own from one source, idle ones are dropped, the number is
// limited, and one host that the source does not have stops no other. Method: a source whose tiers
// a test counts; readings on the test's thread, and one on the oracles' own.

#include "server/directory/ranking/network_oracles.h"

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/soon.h"

namespace ckv {
namespace {

// Every host is of tier 1, and the asking one of tier 0. Thread-safe.
class CountedSource final : public OracleSource {
 public:
  absl::StatusOr<NetworkSnapshot> Read(const std::string& requester_host,
                                       const std::vector<std::string>& holder_hosts, Clock& clock,
                                       Instant /*deadline*/) override {
    absl::MutexLock lock(&mu);
    read.push_back(requester_host);
    if (!down.ok()) return down;
    if (requester_host == "unknown") return absl::NotFoundError("no such host");
    NetworkSnapshot snapshot;
    snapshot.tiers = {{"node", 100e9, 1, 0}, {"rack", 10e9, 3, 0}};
    for (const std::string& host : holder_hosts) snapshot.tier_of_host[host] = 1;
    snapshot.tier_of_host[requester_host] = 0;
    snapshot.taken = clock.Now();
    return snapshot;
  }
  std::string Describe() const override { return "counted"; }

  absl::Mutex mu;
  std::vector<std::string> read ABSL_GUARDED_BY(mu);
  absl::Status down ABSL_GUARDED_BY(mu);
};

struct NetworkOraclesTest : testing::Test {
  static NetworkOracleOptions With(Clock* clock) {
    NetworkOracleOptions options;
    options.clock = clock;
    return options;
  }
  std::vector<std::string> TakeRead() {
    absl::MutexLock lock(&source->mu);
    std::vector<std::string> read = std::move(source->read);
    source->read.clear();
    return read;
  }
  ManualClock clock;
  CountedSource* source = new CountedSource;
  NetworkOracles oracles{std::unique_ptr<OracleSource>(source), With(&clock)};
};

TEST_F(NetworkOraclesTest, EachHostHasItsOwnPaths) {
  EXPECT_EQ(oracles.From("a")->PathTo("b"), std::nullopt) << "before the first reading";
  EXPECT_EQ(oracles.From("b")->Snapshot(), nullptr);
  ASSERT_TRUE(oracles.Refresh().ok());
  EXPECT_EQ(oracles.From("a")->PathTo("b")->tier, 1u);
  EXPECT_EQ(oracles.From("b")->PathTo("b")->tier, 0u);
  EXPECT_EQ(oracles.From(""), nullptr);
  EXPECT_EQ(oracles.From(std::string(kOracleNameBytesMax + 1, 'x')), nullptr);
}

TEST_F(NetworkOraclesTest, AnUnknownHostStopsNoOther) {
  for (const char* host : {"a", "unknown", "b"}) oracles.From(host)->PathTo("c");
  EXPECT_TRUE(absl::IsNotFound(oracles.Refresh()));
  EXPECT_EQ(oracles.From("a")->PathTo("c")->tier, 1u);
  EXPECT_EQ(oracles.From("b")->PathTo("c")->tier, 1u);
  EXPECT_EQ(oracles.From("unknown")->PathTo("c"), std::nullopt);
}

TEST_F(NetworkOraclesTest, ASourceThatIsDownEndsTheReading) {
  for (const char* host : {"a", "b"}) oracles.From(host);
  {
    absl::MutexLock lock(&source->mu);
    source->down = absl::DeadlineExceededError("late");
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(oracles.Refresh()));
  EXPECT_EQ(TakeRead().size(), 1u);
}

TEST_F(NetworkOraclesTest, IdleHostsMakeRoom) {
  for (size_t i = 0; i < NetworkOracles::kFromHostCountMax; ++i)
    EXPECT_NE(oracles.From(absl::StrFormat("h%d", i)), nullptr);
  EXPECT_EQ(oracles.From("more"), nullptr);
  clock.Advance(NetworkOracles::kIdleMax);
  EXPECT_NE(oracles.From("h7"), nullptr);
  clock.Advance(Duration(1));
  EXPECT_NE(oracles.From("more"), nullptr);
  ASSERT_TRUE(oracles.Refresh().ok());
  EXPECT_THAT(TakeRead(), testing::UnorderedElementsAre("h7", "more"));
}

TEST(NetworkOraclesThread, ReadsForANewHostAtOnce) {
  NetworkOracleOptions options;
  options.period = std::chrono::hours(1);
  NetworkOracles oracles(std::make_unique<CountedSource>(), options);
  oracles.Start();
  const Instant until = test::Soon();
  absl::Mutex mu;
  while (oracles.From("a")->Snapshot() == nullptr && Clock::Real()->Now() < until) {
    absl::MutexLock lock(&mu);
    const bool never = false;
    Clock::Real()->Await(mu, absl::Condition(&never),
                         Clock::Real()->Now() + std::chrono::milliseconds(1));
  }
  EXPECT_NE(oracles.From("a")->Snapshot(), nullptr);
}

}  // namespace
}  // namespace ckv
