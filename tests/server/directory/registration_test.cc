// Goal: a member stays registered through everything a directory does, and its gate is never open
// longer than its lease allows.
// Method: a real DirectoryState behind a registrar that a test can cut off; time is a ManualClock
// that the test advances, and it waits for the registration's own counters.

#include "server/directory/registration.h"

#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "proto/base/clock.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The local registrar, with a wire that can be cut, and a count of all calls.
class CuttableRegistrar final : public DirectoryRegistrar {
 public:
  explicit CuttableRegistrar(DirectoryState* state)
      : local_(std::make_unique<LocalRegistrar>(state)) {}

  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl, bool continues,
                                      Instant deadline) override {
    if (!Connected()) return absl::UnavailableError("cut off");
    return local_->Register(member, ttl, continues, deadline);
  }
  absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health,
                                         Instant deadline) override {
    if (!Connected()) return absl::UnavailableError("cut off");
    auto answer = local_->KeepAlive(lease_id, health, deadline);
    absl::MutexLock lock(&mu_);
    // The directory may die right after it denied a lease.
    if (absl::IsNotFound(answer.status()) && cut_after_denial_) connected_ = false;
    return answer;
  }
  absl::Status Deregister(uint64_t lease_id, Instant deadline) override {
    if (!Connected()) return absl::UnavailableError("cut off");
    return local_->Deregister(lease_id, deadline);
  }

  void Connect(bool connected) {
    absl::MutexLock lock(&mu_);
    connected_ = connected;
    cut_after_denial_ = false;
  }
  void CutAfterDenial() {
    absl::MutexLock lock(&mu_);
    cut_after_denial_ = true;
  }
  // Another incarnation of the directory. Call it while the member waits.
  void Restart(DirectoryState* state) { local_ = std::make_unique<LocalRegistrar>(state); }
  uint64_t call_count() {
    absl::MutexLock lock(&mu_);
    return call_count_;
  }

 private:
  bool Connected() {
    absl::MutexLock lock(&mu_);
    ++call_count_;
    return connected_;
  }

  std::unique_ptr<LocalRegistrar> local_;
  absl::Mutex mu_;
  bool connected_ ABSL_GUARDED_BY(mu_) = true;
  bool cut_after_denial_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t call_count_ ABSL_GUARDED_BY(mu_) = 0;
};

class RegistrationTest : public testing::Test {
 protected:
  RegistrationTest() {
    directory_options_.clock = &clock_;
    directory_ = std::make_unique<DirectoryState>(directory_options_);
    registrar_ = std::make_unique<CuttableRegistrar>(directory_.get());
    options_.member = {
        .id = {"a"}, .role = MemberRole::kHolder, .control_address = "127.0.0.1:7400", .epoch = {}};
    options_.ttl = seconds(3);
    options_.clock = &clock_;
  }

  void Start() {
    registration_ = std::make_unique<Registration>(options_, registrar_.get(), &gate_);
  }

  // Another process registers the same name from an address of its own.
  absl::StatusOr<LeaseGrant> RegisterElsewhere() {
    Member other = options_.member;
    other.control_address = "127.0.0.1:7999";
    return directory_->Register(other, seconds(3));
  }

  // Waits until the report meets `condition`. Real time bounds it, so that a bug fails the test.
  bool Await(const std::function<bool(const Registration::Report&)>& condition) {
    absl::Mutex mu;
    absl::MutexLock lock(&mu);
    const Instant deadline = Clock::Real()->Now() + seconds(30);
    while (!condition(registration_->report())) {
      if (Clock::Real()->Now() > deadline) return false;
      static const bool never = false;
      Clock::Real()->Await(mu, absl::Condition(&never), Clock::Real()->Now() + milliseconds(1));
    }
    return true;
  }

  ManualClock clock_;
  DirectoryOptions directory_options_;
  std::unique_ptr<DirectoryState> directory_;
  std::unique_ptr<CuttableRegistrar> registrar_;
  LeaseGate gate_;
  RegistrationOptions options_;
  std::unique_ptr<Registration> registration_;
};

TEST_F(RegistrationTest, RegistersAndOpensTheGateForHalfTheLease) {
  const Instant start = clock_.Now();
  Start();
  const auto epoch = registration_->AwaitLease(kInstantMax);
  ASSERT_TRUE(epoch.ok());
  EXPECT_EQ(directory_->Members().at(0).epoch, *epoch);
  EXPECT_EQ(gate_.epoch(), *epoch);
  EXPECT_TRUE(gate_.LiveAt(start + milliseconds(1499)));
  EXPECT_FALSE(gate_.LiveAt(start + milliseconds(1500)));
}

TEST_F(RegistrationTest, RenewsEveryThirdOfTheLease) {
  Start();
  const auto epoch = registration_->AwaitLease(kInstantMax);
  ASSERT_TRUE(epoch.ok());
  for (uint64_t renewal = 1; renewal <= 12; ++renewal) {
    clock_.Advance(seconds(1));
    ASSERT_TRUE(Await([&](const auto& report) { return report.renewal_count == renewal; }));
    ASSERT_TRUE(gate_.LiveAt(clock_.Now() + milliseconds(1499)));
  }
  EXPECT_EQ(directory_->Members().at(0).epoch, *epoch) << "12 s on a lease of 3 s: the same life";
}

TEST_F(RegistrationTest, CutOffTheGateClosesBeforeTheDirectoryGivesUp) {
  Start();
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  const Epoch first = gate_.epoch();
  registrar_->Connect(false);
  clock_.Advance(milliseconds(1500));
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count >= 1; }));
  EXPECT_FALSE(gate_.LiveAt(clock_.Now()));
  EXPECT_EQ(directory_->Members().size(), 1u) << "the directory still counts on it";

  // Back in time: the same lease, the same epoch.
  registrar_->Connect(true);
  clock_.Advance(milliseconds(100));
  ASSERT_TRUE(Await([](const auto& report) { return report.renewal_count >= 1; }));
  EXPECT_TRUE(gate_.LiveAt(clock_.Now()));
  EXPECT_EQ(gate_.epoch(), first);
}

TEST_F(RegistrationTest, ALeaseThatRanOutIsReportedAsNone) {
  Start();
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  registrar_->Connect(false);
  clock_.Advance(milliseconds(2999));
  EXPECT_TRUE(registration_->report().lease.has_value());
  clock_.Advance(milliseconds(1));
  EXPECT_FALSE(registration_->report().lease.has_value());
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count >= 1; }));
  registrar_->Connect(true);
  clock_.Advance(seconds(2));
  ASSERT_TRUE(Await([](const auto& report) { return report.lease.has_value(); }));
}

// Goal: the log reports once when the gate closes and why, and once when it opens again.
TEST_F(RegistrationTest, LogsWhenTheDirectoryRefusesAndAnswersAgain) {
  testing::internal::CaptureStderr();
  Start();
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  registrar_->Connect(false);
  clock_.Advance(seconds(1));
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count == 1; }));
  for (uint64_t failures = 2; failures < 8; ++failures) {
    clock_.Advance(seconds(2));
    ASSERT_TRUE(Await([&](const auto& report) { return report.failure_count == failures; }));
  }
  registrar_->Connect(true);
  clock_.Advance(seconds(2));
  ASSERT_TRUE(Await([](const auto& report) { return report.registration_count == 2; }));
  registration_.reset();
  const std::string log = testing::internal::GetCapturedStderr();
  const auto count = [&log](std::string_view what) {
    size_t found = 0;
    for (size_t at = log.find(what); at != std::string::npos; at = log.find(what, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("a: the directory does not renew its lease (KeepAlive): cut off"), 1u) << log;
  EXPECT_EQ(count("a refuses every request until the directory"), 1u) << log;
  EXPECT_EQ(count("a answers requests again"), 1u) << log;
}

TEST_F(RegistrationTest, RegistersAgainAfterAnExpiredLease) {
  Start();
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  const Epoch first = gate_.epoch();
  registrar_->Connect(false);
  clock_.Advance(seconds(3));
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count >= 1; }));
  registrar_->Connect(true);
  clock_.Advance(seconds(2));
  ASSERT_TRUE(Await([](const auto& report) { return report.registration_count == 2; }));
  EXPECT_GT(gate_.epoch(), first);
  EXPECT_TRUE(gate_.LiveAt(clock_.Now()));
  EXPECT_EQ(directory_->Members().at(0).epoch, gate_.epoch());
}

TEST_F(RegistrationTest, ADeniedLeaseClosesTheGateAtOnce) {
  Start();
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  const Epoch first = gate_.epoch();
  // Another process takes the name: this one's lease is dead.
  ASSERT_TRUE(directory_->Register(options_.member, seconds(3)).ok());
  clock_.Advance(seconds(1));
  ASSERT_TRUE(Await([](const auto& report) { return report.registration_count == 2; }));
  EXPECT_GT(gate_.epoch().value, first.value + 1);
}

TEST_F(RegistrationTest, ANameThatIsAnothersIsGivenUpAfterOneLease) {
  const auto other = RegisterElsewhere();
  ASSERT_TRUE(other.ok());
  Start();
  // Tries after 50, 150, 350, 750 and 1550 ms, and at the end of the lease: 3 s.
  uint64_t failures = 1;
  ASSERT_TRUE(Await([&](const auto& report) { return report.failure_count == failures; }));
  for (const int wait_ms : {50, 100, 200, 400, 800, 1450}) {
    ASSERT_TRUE(directory_->KeepAlive(other->lease_id).ok());
    EXPECT_FALSE(registration_->report().gave_up);
    clock_.Advance(milliseconds(wait_ms));
    ++failures;
    ASSERT_TRUE(Await([&](const auto& report) { return report.failure_count == failures; }));
  }
  const auto lease = registration_->AwaitLease(kInstantMax);
  EXPECT_TRUE(absl::IsAlreadyExists(lease.status()));
  EXPECT_NE(std::string(lease.status().message()).find("held by 127.0.0.1:7999"),
            std::string::npos);
  EXPECT_TRUE(registration_->report().gave_up);
  EXPECT_FALSE(gate_.LiveAt(clock_.Now()));
  EXPECT_TRUE(directory_->KeepAlive(other->lease_id).ok()) << "it never lost its lease";
  clock_.Advance(seconds(60));
  EXPECT_EQ(registrar_->call_count(), failures) << "nor is it asked again";
}

TEST_F(RegistrationTest, WaitsForTheLeaseOfAnEarlierIncarnationElsewhere) {
  ASSERT_TRUE(RegisterElsewhere().ok());  // and killed: no one renews it
  clock_.Advance(milliseconds(1));
  Start();
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count == 1; }));
  for (uint64_t i = 2; i <= 6; ++i) {
    clock_.Advance(milliseconds(25 << (i - 1)));
    ASSERT_TRUE(Await([&](const auto& report) { return report.failure_count == i; }));
  }
  clock_.Advance(milliseconds(1450));  // 3000 ms after the first try
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  EXPECT_TRUE(gate_.LiveAt(clock_.Now()));
  EXPECT_EQ(directory_->Members().at(0).control_address, options_.member.control_address);
}

// The earlier incarnation requested a longer lease than this one does.
TEST_F(RegistrationTest, WaitsForALongerLeaseOfAnEarlierIncarnation) {
  Member earlier = options_.member;
  earlier.control_address = "127.0.0.1:7999";
  ASSERT_TRUE(directory_->Register(earlier, seconds(30)).ok());
  clock_.Advance(seconds(1));
  Start();
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count == 1; }));
  clock_.Advance(seconds(20));  // far more than this incarnation's own 3 s
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count == 2; }));
  EXPECT_FALSE(registration_->report().gave_up);
  clock_.Advance(seconds(9));
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  EXPECT_TRUE(gate_.LiveAt(clock_.Now()));
}

TEST_F(RegistrationTest, AMemberWhoseNameWasTakenMeanwhileStaysRefusedAndKeepsTrying) {
  Start();
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  registrar_->Connect(false);
  clock_.Advance(seconds(3));
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count == 1; }));
  const auto other = RegisterElsewhere();
  ASSERT_TRUE(other.ok());
  registrar_->Connect(true);
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(seconds(2));
    ASSERT_TRUE(Await([&](const auto& report) {
      return absl::IsAlreadyExists(report.last_error) &&
             report.failure_count >= static_cast<uint64_t>(2 + i);
    }));
    ASSERT_TRUE(directory_->KeepAlive(other->lease_id).ok());
    ASSERT_FALSE(gate_.LiveAt(clock_.Now()));
    ASSERT_FALSE(registration_->report().gave_up);
  }
  EXPECT_LT(registrar_->call_count(), 40u) << "at its normal pace";
  ASSERT_TRUE(directory_->Deregister(other->lease_id).ok());
  clock_.Advance(seconds(2));
  ASSERT_TRUE(Await([](const auto& report) { return report.registration_count == 2; }));
  EXPECT_TRUE(gate_.LiveAt(clock_.Now()));
}

TEST_F(RegistrationTest, RetriesWithBoundedBackoffWhileTheDirectoryIsAway) {
  registrar_->Connect(false);
  Start();
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count == 1; }));
  const auto lease = registration_->AwaitLease(clock_.Now());
  EXPECT_TRUE(absl::IsDeadlineExceeded(lease.status()));
  EXPECT_NE(std::string(lease.status().message()).find("cut off"), std::string::npos);
  // 50, 100, 200, 400, 800, 1600, then 2000 ms for ever.
  uint64_t failures = 1;
  for (const int wait_ms : {50, 100, 200, 400, 800, 1600, 2000, 2000, 2000}) {
    clock_.Advance(milliseconds(wait_ms - 1));
    EXPECT_EQ(registrar_->call_count(), failures);
    clock_.Advance(milliseconds(1));
    ++failures;
    ASSERT_TRUE(Await([&](const auto& report) { return report.failure_count == failures; }));
  }
  EXPECT_FALSE(gate_.LiveAt(clock_.Now()));
  registrar_->Connect(true);
  clock_.Advance(seconds(2));
  EXPECT_TRUE(registration_->AwaitLease(kInstantMax).ok());
}

TEST_F(RegistrationTest, StoppingClosesTheGateAndEndsTheLease) {
  Start();
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  registration_.reset();
  EXPECT_FALSE(gate_.LiveAt(clock_.Now()));
  EXPECT_TRUE(directory_->Members().empty());
}

TEST_F(RegistrationTest, ARequesterNeedsNoGate) {
  options_.member.role = MemberRole::kRequester;
  registration_ = std::make_unique<Registration>(options_, registrar_.get(), nullptr);
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  registration_.reset();
  EXPECT_TRUE(directory_->Members().empty());
}

// A restarted directory has no lease. The previous incarnation promised the name until the lease
// ends, so the gate need not wait for the next epoch, which may take long.
TEST_F(RegistrationTest, ARestartedDirectoryClosesNoGate) {
  const Instant start = clock_.Now();
  Start();
  const auto epoch = registration_->AwaitLease(kInstantMax);
  ASSERT_TRUE(epoch.ok());
  directory_options_.first_epoch = 100;
  DirectoryState later(directory_options_);
  registrar_->Restart(&later);
  registrar_->CutAfterDenial();
  clock_.Advance(seconds(1));
  ASSERT_TRUE(Await([](const auto& report) { return !report.lease && report.failure_count >= 2; }));
  EXPECT_EQ(gate_.epoch(), *epoch);
  EXPECT_TRUE(gate_.LiveAt(start + milliseconds(1499)));
  EXPECT_FALSE(gate_.LiveAt(start + milliseconds(1500))) << "no longer than it was promised";
  registrar_->Connect(true);
  clock_.Advance(milliseconds(400));
  ASSERT_TRUE(Await([](const auto& report) { return report.lease.has_value(); }));
  EXPECT_EQ(gate_.epoch().value, 101u);
  EXPECT_TRUE(gate_.LiveAt(clock_.Now()));
  registration_.reset();
}

// The directory is back long before the pause between two tries is over.
TEST_F(RegistrationTest, ProddedItTriesAtOnce) {
  Start();
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  registrar_->Connect(false);
  for (uint64_t failures = 1; failures <= 5; ++failures) {
    clock_.Advance(seconds(1));
    ASSERT_TRUE(Await([&](const auto& report) { return report.failure_count >= failures; }));
  }
  registrar_->Connect(true);
  const Instant now = clock_.Now();
  registration_->Prod();
  ASSERT_TRUE(Await([](const auto& report) { return report.last_error.ok(); }));
  EXPECT_EQ(clock_.Now(), now) << "no time had to pass";
}

// The directory has given the name to another member: this incarnation's gate closes at once.
TEST_F(RegistrationTest, ANameThatADirectoryGaveAwayAfterItsStartClosesTheGate) {
  Start();
  ASSERT_TRUE(registration_->AwaitLease(kInstantMax).ok());
  DirectoryState later(directory_options_);
  Member other = options_.member;
  other.control_address = "127.0.0.1:7999";
  ASSERT_TRUE(later.Register(other, seconds(3)).ok());
  registrar_->Restart(&later);
  clock_.Advance(seconds(1));
  ASSERT_TRUE(Await([](const auto& report) { return absl::IsAlreadyExists(report.last_error); }));
  EXPECT_FALSE(gate_.LiveAt(clock_.Now()));
  registration_.reset();
}

TEST_F(RegistrationTest, AnAbsurdLeaseIsAnErrorAndNotALoop) {
  directory_options_.lease_ttl_min = Duration(0);
  directory_ = std::make_unique<DirectoryState>(directory_options_);
  registrar_ = std::make_unique<CuttableRegistrar>(directory_.get());
  options_.ttl = Duration(1);
  Start();
  ASSERT_TRUE(Await([](const auto& report) { return report.failure_count == 1; }));
  EXPECT_FALSE(gate_.LiveAt(clock_.Now()));
  EXPECT_EQ(registrar_->call_count(), 1u);
}

}  // namespace
}  // namespace ckv
