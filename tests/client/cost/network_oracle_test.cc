// Goal: an operator's description of the network is used within its limits, ranks holders as the
// paper ranks them, and is never waited for.
// Source of the figures: arXiv:2606.03910 sections III-D (the worked example).

#include "client/cost/network_oracle.h"

#include <filesystem>
#include <fstream>

#include "client/cost/oracle_file.h"
#include "client/cost/predicate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cost/predicate_input.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using testing::HasSubstr;

PathCost Path(double gigabytes_per_s, double congestion, double in_flight = 0) {
  PathCost path;
  path.bandwidth_bytes_per_s = gigabytes_per_s * 1e9;
  path.congestion = congestion;
  path.in_flight = in_flight;
  return path;
}

// III-D, through the predicate: replicas are ranked by what is left of their tiers.
TEST(NetworkOracle, ReplicasAreRankedByTheirTiers) {
  DecisionInput input = test::BareInput(1);
  input.candidates.resize(2);
  for (Candidate& candidate : input.candidates) candidate.fabric.reset();
  input.candidates[0].path = Path(6.25, 0.2, 1);
  input.candidates[1].path = Path(3.125, 0.2);
  // Both have 2.5 GB/s left: a tie, and the first is taken.
  EXPECT_EQ(Decide(input).cost(Primitive::kFetch).candidate, 0u);
  input.candidates[1].path->congestion = 0.1;
  EXPECT_EQ(Decide(input).cost(Primitive::kFetch).candidate, 1u);
  input.candidates[0].path->in_flight = 0;
  EXPECT_EQ(Decide(input).cost(Primitive::kFetch).candidate, 0u);
}

constexpr std::string_view kFile = R"({
  "version": 1,
  "tiers": [
    {"name": "node", "bandwidth_GBps": 450, "latency_us": 1},
    {"name": "rack", "bandwidth_GBps": 12.5, "latency_us": 3},
    {"name": "pod", "bandwidth_GBps": 6.25, "latency_us": 8, "congestion": 0.2},
    {"bandwidth_GBps": 3.125, "latency_us": 15, "congestion": 0.5}
  ],
  "hosts": {
    "a": ["p1", "r1", "n1"], "same": ["p1", "r1", "n1"], "rack": ["p1", "r1", "n2"],
    "pod": ["p1", "r2", "n1"], "far": ["p2", "r1", "n1"]
  }
})";

std::string Changed(std::string_view from, std::string_view to) {
  std::string text(kFile);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(OracleFile, HostsAreAsFarAsTheirLabelsDiffer) {
  const auto snapshot = ParseOracleFile(kFile, "a");
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  const std::pair<const char*, uint32_t> tiers[] = {
      {"a", 0}, {"same", 0}, {"rack", 1}, {"pod", 2}, {"far", 3}};
  for (const auto& [host, tier] : tiers) {
    const auto path = snapshot->Find(host, Instant{}, Duration(1));
    ASSERT_TRUE(path.has_value()) << host;
    EXPECT_EQ(path->tier, tier) << host;
  }
  const auto far = snapshot->Find("far", Instant{}, Duration(1));
  EXPECT_EQ(far->bandwidth_bytes_per_s, 3.125e9);
  EXPECT_EQ(far->latency_us, 15);
  EXPECT_EQ(far->congestion, 0.5);
  EXPECT_FALSE(snapshot->Find("elsewhere", Instant{}, Duration(1)).has_value());
}

TEST(OracleFile, NamesWhatIsInvalid) {
  const struct {
    std::string text;
    const char* error;
  } cases[] = {
      {"{", "not JSON"},
      {"[]", "not a JSON object"},
      {Changed("\"version\": 1", "\"version\": 2"), "version: is not 1"},
      {Changed("\"tiers\": [", "\"tears\": ["), "tears: nothing of that name"},
      {Changed("\"latency_us\": 3", "\"latency\": 3"), "tiers[1].latency: nothing of that name"},
      {Changed("\"latency_us\": 3", "\"latency_us\": \"3\""),
       "tiers[1].latency_us: is not a number"},
      {Changed(", \"latency_us\": 3", ""), "tiers[1].latency_us: is missing"},
      {Changed("\"latency_us\": 3", "\"latency_us\": -3"), "tiers[1].latency_us: -3 is not within"},
      {Changed("450", "0"), "tiers[0].bandwidth: 0 bytes a second"},
      {Changed("450", "1e999"), "JSON"},
      {Changed("0.2", "1"), "tiers[2].congestion: 1 is not within [0, 1)"},
      {Changed("0.2", "-0.1"), "tiers[2].congestion"},
      {Changed("\"node\"", "7"), "tiers[0].name: is not a string"},
      {Changed("[\"p1\", \"r1\", \"n2\"]", "[\"p1\", \"r1\"]"), "hosts[rack]: is not a list of 3"},
      {Changed("[\"p1\", \"r1\", \"n2\"]", "[\"p1\", 1, \"n2\"]"), "hosts[rack]: a label"},
      {Changed("\"rack\":", "\"a\":"), "twice"},
      {R"({"version": 1, "tiers": [], "hosts": {}})", "tiers: 0 of them"},
      {R"({"version": 1, "tiers": {}, "hosts": {}})", "tiers: is not a list"},
      {R"({"version": 1, "tiers": [3], "hosts": {}})", "tiers[0]: is not an object"},
  };
  for (const auto& [text, error] : cases) {
    const absl::Status status = ParseOracleFile(text, "a").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(error)) << text;
  }
  const absl::Status stranger = ParseOracleFile(kFile, "b").status();
  EXPECT_EQ(stranger.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(stranger.message()), HasSubstr("'b'"));
  std::string many = R"({"version": 1, "hosts": {}, "tiers": [{})";
  for (uint32_t i = 0; i < kTierCountMax; ++i) many += ", {}";
  EXPECT_THAT(std::string(ParseOracleFile(many + "]}", "a").status().message()),
              HasSubstr("tiers: 17 of them"));
}

// A file that is cut anywhere, or has any byte changed, is refused or within the limits.
TEST(OracleFile, DamagedFilesAreRefusedOrHarmless) {
  for (size_t i = 0; i < kFile.size(); ++i) {
    EXPECT_FALSE(ParseOracleFile(kFile.substr(0, i), "a").ok()) << i;
    for (const char byte : {'\0', '"', '9', '}', '\xff'}) {
      std::string text(kFile);
      text[i] = byte;
      const auto parsed = ParseOracleFile(text, "a");
      if (parsed.ok()) {
        EXPECT_TRUE(ValidateSnapshot(*parsed).ok()) << text;
      }
    }
  }
}

struct OracleOfFile : testing::Test {
  void Write(std::string_view text) { std::ofstream(path) << text; }
  std::unique_ptr<NetworkOracle> Oracle() {
    NetworkOracleOptions options;
    options.requester_host = "a";
    options.clock = &clock;
    return std::make_unique<NetworkOracle>(std::make_unique<OracleFile>(path), options);
  }
  const std::string path = test::TempPath("network.json");
  ManualClock clock;
};

TEST_F(OracleOfFile, ABadReadingKeepsTheLastSnapshot) {
  std::filesystem::remove(path);
  const auto oracle = Oracle();
  EXPECT_EQ(oracle->Snapshot(), nullptr);
  EXPECT_FALSE(oracle->PathTo("far").has_value());
  EXPECT_EQ(oracle->Refresh().code(), absl::StatusCode::kNotFound);
  Write(kFile);
  ASSERT_TRUE(oracle->Refresh().ok());
  const auto before = oracle->Snapshot();
  Write("{");
  const absl::Status status = oracle->Refresh();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  EXPECT_EQ(oracle->Snapshot(), before);
  Write(Changed("0.5", "0.9"));
  ASSERT_TRUE(oracle->Refresh().ok());
  EXPECT_EQ(oracle->PathTo("far")->congestion, 0.9);
  EXPECT_EQ(before->Find("far", clock.Now(), Duration(1))->congestion, 0.5);
  EXPECT_EQ(OracleFile(test::TempPath("")).Read("a", {}, clock, kInstantMax).status().code(),
            absl::StatusCode::kUnavailable);
}

// Congestion ages, tiers do not.
TEST_F(OracleOfFile, OldCongestionDoesNotCount) {
  Write(kFile);
  const auto oracle = Oracle();
  ASSERT_TRUE(oracle->Refresh().ok());
  clock.Advance(oracle->options().congestion_age_max);
  EXPECT_EQ(oracle->PathTo("far")->congestion, 0.5);
  clock.Advance(Duration(1));
  EXPECT_EQ(oracle->PathTo("far")->congestion, 0);
  EXPECT_EQ(oracle->PathTo("far")->bandwidth_bytes_per_s, 3.125e9);
}

// Answers when a test allows it, and records the hosts of each query.
class SlowSource final : public OracleSource {
 public:
  struct Seen {
    absl::Mutex mu;
    int begun ABSL_GUARDED_BY(mu) = 0;
    bool let ABSL_GUARDED_BY(mu) = false;
    std::vector<std::string> hosts ABSL_GUARDED_BY(mu);
  };
  explicit SlowSource(Seen* seen) : seen_(*seen) {}

  absl::StatusOr<NetworkSnapshot> Read(const std::string&, const std::vector<std::string>& hosts,
                                       Clock& clock, Instant) override {
    absl::MutexLock lock(&seen_.mu);
    ++seen_.begun;
    seen_.hosts = hosts;
    seen_.mu.Await(absl::Condition(&seen_.let));
    NetworkSnapshot snapshot;
    snapshot.tiers = {{"near", 1e9, 1, 0}};
    for (const std::string& host : hosts) snapshot.tier_of_host[host] = 0;
    snapshot.taken = clock.Now();
    return snapshot;
  }
  std::string Describe() const override { return "slow"; }

 private:
  Seen& seen_;
};

TEST(NetworkOracle, CallsNeverWaitForAReading) {
  SlowSource::Seen seen;
  ManualClock clock;
  NetworkOracleOptions options;
  options.clock = &clock;
  NetworkOracle oracle(std::make_unique<SlowSource>(&seen), options);
  oracle.Start();
  const auto await = [&seen](bool (*condition)(SlowSource::Seen*)) {
    absl::MutexLock lock(&seen.mu);
    seen.mu.Await(absl::Condition(condition, &seen));
  };
  await([](SlowSource::Seen* s) ABSL_NO_THREAD_SAFETY_ANALYSIS { return s->begun == 1; });
  // A reading is in progress, and stays so.
  EXPECT_FALSE(oracle.PathTo("h1").has_value());
  {
    absl::MutexLock lock(&seen.mu);
    seen.let = true;
  }
  // The new host is queried without a period's wait: the clock does not advance.
  await([](SlowSource::Seen* s)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { return s->hosts == std::vector<std::string>{"h1"}; });
  // The thread publishes after that. Refresh reads once more on this thread, so the path is present
  // in any case.
  ASSERT_TRUE(oracle.Refresh().ok());
  EXPECT_TRUE(oracle.PathTo("h1").has_value());
}

TEST(NetworkOracle, HostsOfAddresses) {
  EXPECT_EQ(HostOfAddress("10.0.0.7:7401"), "10.0.0.7");
  EXPECT_EQ(HostOfAddress("h1.rack2:1"), "h1.rack2");
  EXPECT_EQ(HostOfAddress("[::1]:7401"), "::1");
  EXPECT_EQ(HostOfAddress("::1"), "::1");
  EXPECT_EQ(HostOfAddress("plain"), "plain");
  EXPECT_EQ(HostOfAddress(""), "");
  EXPECT_EQ(HostOfAddress("["), "[");
}

}  // namespace
}  // namespace ckv
