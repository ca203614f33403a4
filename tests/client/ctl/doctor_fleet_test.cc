// Goal: ckvctl doctor finds each mistake of a fleet that it looks for, with its remedy, and none in
// a fleet that is set up well.
// Method: facts that processes may report, with one thing changed; then daemons and the command in
// this process.

#include <string>
#include <utility>
#include <vector>

#include "client/ctl/doctor/fleet_checks.h"
#include "tests/server/services/moving_chunks_fixture.h"

namespace ckv::ctl::doctor {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

ProcessFacts GoodProcess(const std::string& host, uint32_t pid, const std::string& role) {
  ProcessFacts process;
  process.version = "0.1.0";
  process.commit = "3bb4fde8a1c2";
  process.roles = {role};
  process.fabrics = {"shm", "tcp"};
  process.host_identity = host;
  process.pid = pid;
  process.wall_clock_ms = 1'000'000;
  process.processor_count = 4;
  process.spinning_thread_count = 2;
  process.memlock_bytes_max = UINT64_MAX;
  process.wire_version_min = 4;
  process.wire_version_max = 5;
  process.lease_ttl_ms = 3000;
  if (role == "holder") {
    process.data_listen = "10.0.0.2:7402";
    process.store_path = "/var/lib/ckv/h1";
  }
  return process;
}

// Two holders and a requester of three hosts, and a directory on a fourth.
FleetFacts GoodFacts() {
  FleetFacts facts;
  facts.version = "0.1.0";
  facts.commit = "3bb4fde8a1c2";
  facts.host_identity = "here";
  facts.directory = {"the directory", "10.0.0.1:7400", absl::OkStatus(),
                     GoodProcess("d", 10, "directory")};
  facts.home.set_path("/var/lib/ckv/directory");
  facts.home_known = true;
  const auto add = [&](const std::string& name, MemberRole role, const std::string& address,
                       uint32_t pid) {
    const bool holder = role == MemberRole::kHolder;
    facts.members.push_back({(holder ? "holder " : "requester ") + name, address, absl::OkStatus(),
                             GoodProcess("host of " + name, pid, holder ? "holder" : "requester")});
    MemberReport report{{{name}, role, address, {1}}, absl::OkStatus(), {}};
    if (holder) {
      report.stats.set_kernel_target("AVX2");
      report.stats.add_kernel_targets("AVX3");
      report.stats.add_kernel_targets("AVX2");
      report.stats.add_models("deepseek@r1 61x576");
    }
    facts.reports.push_back(std::move(report));
  };
  add("h1", MemberRole::kHolder, "10.0.0.2:7401", 11);
  add("h2", MemberRole::kHolder, "10.0.0.3:7401", 12);
  add("r1", MemberRole::kRequester, "10.0.0.4:7311", 13);
  return facts;
}

Check OnlyWrong(const FleetFacts& facts, const std::string& name, Verdict verdict,
                const std::vector<HostDaemon>& here = {}) {
  Checks wrong;
  for (const Check& check : JudgeFleet(facts, here).checks) {
    if (check.remedy.empty()) continue;
    EXPECT_EQ(check.name, name) << check.finding;
    wrong.push_back(check);
  }
  EXPECT_EQ(wrong.size(), 1u) << name;
  if (wrong.size() != 1) return {};
  EXPECT_EQ(wrong.front().verdict, verdict);
  return wrong.front();
}

void ExpectNone(const FleetFacts& facts, const std::vector<HostDaemon>& here = {}) {
  for (const Check& check : JudgeFleet(facts, here).checks)
    EXPECT_EQ(check.remedy, "") << check.name << ": " << check.finding;
}

TEST(DoctorNames, ListARoleOnce) {
  EXPECT_EQ(JoinWho({}), "");
  EXPECT_EQ(JoinWho({"holder h1"}), "holder h1");
  EXPECT_EQ(JoinWho({"the directory", "holder h1", "holder h2", "requester r1", "this ckvctl"}),
            "the directory, holders h1, h2, requester r1, this ckvctl");
}

TEST(DoctorFleet, AGoodFleetHasNoMistake) { ExpectNone(GoodFacts()); }

TEST(DoctorFleet, ReportsNothingElseIfTheDirectoryIsSilent) {
  FleetFacts facts;
  facts.directory = {"the directory", "10.0.0.1:7400",
                     absl::UnavailableError("connect refused\n  is it running?"), std::nullopt};
  const Check check = OnlyWrong(facts, "directory", Verdict::kFail);
  EXPECT_EQ(check.finding, "connect refused");
  EXPECT_THAT(check.remedy, HasSubstr("--directory"));
}

TEST(DoctorFleet, AMemberThatIsSilentOrRefusesIsAMistake) {
  FleetFacts facts = GoodFacts();
  facts.findings = {{FindingCode::kMemberUnreachable, Severity::kBroken, "holder h2",
                     "at 10.0.0.3:7401 does not answer: no route", "look at it"}};
  const Check check = OnlyWrong(facts, "members", Verdict::kFail);
  EXPECT_EQ(check.finding,
            "holder h2 at 10.0.0.3:7401 does not answer: no route (member-unreachable)");
  EXPECT_EQ(check.remedy, "look at it");
  facts.findings[0].severity = Severity::kWarning;
  OnlyWrong(facts, "members", Verdict::kWarn);
}

TEST(DoctorFleet, AFleetWithoutAHolderIsAMistake) {
  FleetFacts facts = GoodFacts();
  facts.members.erase(facts.members.begin(), facts.members.begin() + 2);
  facts.reports.erase(facts.reports.begin(), facts.reports.begin() + 2);
  facts.findings = {
      {FindingCode::kNoHolder, Severity::kBroken, "directory", "knows none", "start"}};
  EXPECT_EQ(OnlyWrong(facts, "holders", Verdict::kFail).remedy, "start");
}

TEST(DoctorFleet, ReportsChunksWithoutAHolder) {
  FleetFacts facts = GoodFacts();
  for (const FindingCode code :
       {FindingCode::kCorpusChunksMissing, FindingCode::kCorpusUnproven,
        FindingCode::kHolderLacksChunks, FindingCode::kHolderUnreadableChunks}) {
    facts.findings = {{code, Severity::kBroken, "corpus docs", "lacks 3 chunks", "load it"}};
    EXPECT_THAT(OnlyWrong(facts, "chunks", Verdict::kFail).finding,
                StartsWith("corpus docs lacks 3 chunks"));
  }
}

TEST(DoctorFleet, ReportsFindingsOnceThatDoctorMeasuresMoreClosely) {
  FleetFacts facts = GoodFacts();
  for (const FindingCode code :
       {FindingCode::kBuildsMixed, FindingCode::kClockOff, FindingCode::kWireMismatch}) {
    facts.findings = {{code, Severity::kWarning, "fleet", "differs", "mend"}};
    ExpectNone(facts);
  }
}

TEST(DoctorFleet, ReportsDataThatARestartLoses) {
  FleetFacts facts = GoodFacts();
  facts.home.clear_path();
  EXPECT_THAT(OnlyWrong(facts, "durable", Verdict::kWarn).remedy, StartsWith("directory.path: "));
  facts = GoodFacts();
  facts.members[0].process->store_path.clear();
  EXPECT_THAT(OnlyWrong(facts, "durable", Verdict::kWarn).finding, HasSubstr("a restart of h1"));
  // A process that does not report its folder may or may not have one.
  facts.home_known = false;
  facts.home.clear_path();
  for (Told& member : facts.members) member.process.reset();
  for (const Check& check : JudgeService(facts))
    EXPECT_TRUE(check.name != "durable" || check.verdict == Verdict::kSkipped) << check.finding;
  facts = GoodFacts();
  facts.findings = {{FindingCode::kDirectoryRefusesChanges, Severity::kBroken, "directory",
                     "refuses changes: disk full", "make room"}};
  EXPECT_THAT(OnlyWrong(facts, "durable", Verdict::kFail).finding, HasSubstr("disk full"));
  facts = GoodFacts();
  facts.findings = {{FindingCode::kDirectoryOldCopy, Severity::kWarning, "directory",
                     "has an old copy: h1 has seen change 9", "start every holder"}};
  EXPECT_THAT(OnlyWrong(facts, "durable", Verdict::kWarn).finding, HasSubstr("change 9"));
}

TEST(DoctorFleet, AnAddressOfOneHostAloneIsAMistakeInAFleetOfSeveral) {
  FleetFacts facts = GoodFacts();
  facts.members[2].address = "127.0.0.1:7311";
  EXPECT_THAT(OnlyWrong(facts, "address", Verdict::kFail).remedy,
              AllOf(HasSubstr("listen: HOST:7311"), HasSubstr("advertise: HOST:7311")));
  // In a fleet on one machine, all addresses may be local.
  facts.directory.address = "127.0.0.1:7400";
  facts.directory.process->host_identity = "here";
  for (Told& member : facts.members) {
    member.address = "127.0.0.1:7401";
    member.process->host_identity = "here";
    member.process->spinning_thread_count = 1;
    if (!member.process->data_listen.empty()) member.process->data_listen = "127.0.0.1:0";
  }
  facts.directory.process->spinning_thread_count = 0;
  ExpectNone(facts);
}

TEST(DoctorFleet, LanesThatOtherHostsDoNotReachAreAMistake) {
  FleetFacts facts = GoodFacts();
  facts.members[0].process->data_listen = "127.0.0.1:7402";
  EXPECT_EQ(OnlyWrong(facts, "data_address", Verdict::kFail).remedy,
            "data_listen: 10.0.0.2:7402, and restart it");
}

TEST(DoctorFleet, AProcessWhoseNameAnotherHasIsAMistake) {
  FleetFacts facts = GoodFacts();
  HostDaemon here;
  here.pid = 77;
  here.settings.name = "h1";
  here.settings.directory = "10.0.0.1:7400";
  const Check check = OnlyWrong(facts, "names", Verdict::kFail, {here});
  EXPECT_THAT(check.finding, HasSubstr("pid 77 here is called h1, and so is the holder at "
                                       "10.0.0.2:7401 (pid 11)"));
  here.settings.directory = "10.0.0.9:7400";  // of another fleet
  ExpectNone(facts, {here});
  here.settings.directory = "10.0.0.1:7400";
  facts.members[0].process->host_identity = facts.host_identity;
  facts.members[0].process->pid = 77;
  ExpectNone(facts, {here});
}

TEST(DoctorFleet, AFallbackToTcpIsAMistake) {
  FleetFacts facts = GoodFacts();
  facts.requesters.emplace_back();
  facts.requesters[0].set_id("r1");
  facts.requesters[0].add_holders()->set_fallback("port down");
  EXPECT_THAT(OnlyWrong(facts, "rdma", Verdict::kWarn).finding, HasSubstr("port down"));
}

TEST(DoctorFleet, BuildsThatDifferAreAMistake) {
  FleetFacts facts = GoodFacts();
  facts.members[1].process->commit = "0123456789ab";
  EXPECT_THAT(OnlyWrong(facts, "version", Verdict::kWarn).finding,
              AllOf(HasSubstr("0.1.0 (0123456789ab): holder h2"), HasSubstr("this ckvctl")));
  facts.members[1].process.reset();
  EXPECT_THAT(OnlyWrong(facts, "version", Verdict::kWarn).finding,
              HasSubstr("an earlier build, which does not report it: holder h2"));
  facts = GoodFacts();
  facts.version = "0.2.0";
  EXPECT_THAT(OnlyWrong(facts, "version", Verdict::kWarn).finding,
              HasSubstr("0.2.0 (3bb4fde8a1c2): this ckvctl"));
}

TEST(DoctorFleet, WireVersionsWithoutACommonOneAreAMistake) {
  FleetFacts facts = GoodFacts();
  facts.members[0].process->wire_version_min = 2;
  facts.members[0].process->wire_version_max = 3;
  const Check check = OnlyWrong(facts, "wire", Verdict::kFail);
  EXPECT_THAT(check.finding, HasSubstr("holder h1 2 to 3"));
  EXPECT_EQ(check.remedy, "upgrade holder h1");
  facts.members[0].process->wire_version_max = 4;  // the older of the two that r1 speaks
  ExpectNone(facts);
}

TEST(DoctorFleet, KernelTargetsThatDifferAreAMistake) {
  FleetFacts facts = GoodFacts();
  facts.reports[1].stats.set_kernel_target("AVX3");
  const Check check = OnlyWrong(facts, "kernel", Verdict::kWarn);
  EXPECT_THAT(check.finding, AllOf(HasSubstr("AVX2: h1"), HasSubstr("AVX3: h2")));
  EXPECT_EQ(check.remedy, "kernel_target: AVX3, on every holder and requester");
}

TEST(DoctorFleet, TwoGeometriesOfOneModelAreAMistake) {
  FleetFacts facts = GoodFacts();
  facts.reports[1].stats.set_models(0, "deepseek@r2 61x576");
  EXPECT_THAT(OnlyWrong(facts, "geometry", Verdict::kWarn).finding,
              AllOf(HasSubstr("model deepseek has 2 geometries"), HasSubstr("@r1 61x576: h1")));
  facts.reports[1].stats.set_models(0, "kimi@r2 61x576");
  ExpectNone(facts);
}

TEST(DoctorFleet, LeasesThatAreTooShortOrTooLongAreAMistake) {
  FleetFacts facts = GoodFacts();
  facts.members[0].process->lease_ttl_ms = 500;
  EXPECT_EQ(OnlyWrong(facts, "lease", Verdict::kWarn).remedy, "lease_ttl: 3s");
  facts.members[0].process->lease_ttl_ms = 60'000;
  EXPECT_THAT(OnlyWrong(facts, "lease", Verdict::kWarn).finding, HasSubstr("counts as alive"));
}

TEST(DoctorFleet, AClockThatIsOffIsAMistakeBeyondTheErrorOfItsMeasurement) {
  FleetFacts facts = GoodFacts();
  Told& h1 = facts.members[0];
  h1.ReadClock(990'000, 991'000);  // it answered 1,000,000
  EXPECT_EQ(h1.clock_ahead, std::chrono::milliseconds(9500));
  EXPECT_EQ(h1.clock_error, std::chrono::milliseconds(501));
  EXPECT_THAT(OnlyWrong(facts, "clock", Verdict::kWarn).finding,
              HasSubstr("holder h1 at 10.0.0.2:7401 is 9.5 s ahead of"));
  h1.ReadClock(1'005'000, 1'005'000);
  EXPECT_THAT(OnlyWrong(facts, "clock", Verdict::kWarn).finding, HasSubstr("5.0 s behind"));
  h1.ReadClock(998'000, 1'001'000);  // half a second ahead, and 1.5 s unsure
  ExpectNone(facts);
}

TEST(DoctorFleet, ThreadsThatPollOnTooFewProcessorsAreAMistake) {
  FleetFacts facts = GoodFacts();
  facts.members[0].process->spinning_thread_count = 5;
  EXPECT_THAT(OnlyWrong(facts, "spin", Verdict::kWarn).finding,
              HasSubstr("5 threads of holder h1 poll on the 4 processors"));
  facts = GoodFacts();
  for (Told& member : facts.members) member.process->host_identity = "one";
  EXPECT_THAT(OnlyWrong(facts, "spin", Verdict::kWarn).finding, HasSubstr("6 threads"));
  // Two roles of one process are counted once.
  for (Told& member : facts.members) member.process->pid = 11;
  ExpectNone(facts);
}

TEST(DoctorFleet, AProcessThatMayNotLockWhatVerbsPinsIsAMistake) {
  FleetFacts facts = GoodFacts();
  facts.members[0].process->memlock_bytes_max = 8u << 20;
  ExpectNone(facts);
  facts.members[0].process->fabrics = {"tcp", "verbs"};
  EXPECT_THAT(OnlyWrong(facts, "memlock", Verdict::kWarn).finding, HasSubstr("may lock 8.0 MiB"));
}

class DoctorFleetCommandTest : public test::MovingChunksTest {};

TEST_F(DoctorFleetCommandTest, QueriesEveryProcessAndReportsFaults) {
  StartHolders(2);
  StartRequester();
  Fleet fleet = MakeFleet();
  const FleetFacts facts = AskFleet(fleet);
  ASSERT_EQ(facts.members.size(), 3u);
  ASSERT_EQ(facts.Telling().size(), 4u) << "the directory and each member";
  for (const Told* told : facts.Telling()) {
    EXPECT_EQ(told->process->pid, static_cast<uint32_t>(getpid()));
    EXPECT_EQ(told->process->version, facts.version);
    EXPECT_EQ(told->process->host_identity, facts.host_identity);
    EXPECT_GT(told->process->wire_version_max, 0u);
    EXPECT_GT(told->process->processor_count, 0u);
    EXPECT_LE(told->clock_ahead, told->clock_error + std::chrono::milliseconds(1));
  }
  EXPECT_EQ(facts.members[0].process->roles, std::vector<std::string>{"holder"});
  EXPECT_THAT(facts.members[0].process->data_listen, StartsWith("127.0.0.1:"));
  EXPECT_EQ(facts.requesters.size(), 1u);

  // Nothing here is kept over a restart: that is worth a warning, and no more.
  const Ran fine = Run({"doctor", "fleet"}, /*json=*/false);
  EXPECT_EQ(fine.code, 0) << fine.text << fine.err;
  EXPECT_THAT(fine.text, AllOf(HasSubstr("warn  durable"), HasSubstr("-> store.path: ")));
  holders_[1]->Drain(test::Soon());
  holders_[1].reset();
  v1::RegisterRequest request;
  request.mutable_member()->set_id("mute");
  request.mutable_member()->set_role(v1::MEMBER_ROLE_HOLDER);
  request.mutable_member()->set_control_address("127.0.0.1:1");
  request.set_lease_ttl_ms(60'000);
  v1::RegisterReply reply;
  ASSERT_TRUE(directory_stub_->Register(test::Call().get(), request, &reply).ok());
  const Ran broken = Run({"doctor", "fleet"}, /*json=*/false);
  EXPECT_EQ(broken.code, 7);
  EXPECT_THAT(broken.text, HasSubstr("fail  members"));
  EXPECT_THAT(broken.err, HasSubstr("fleet members"));
}

}  // namespace
}  // namespace ckv::ctl::doctor
