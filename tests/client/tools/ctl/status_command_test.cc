// Goal: ckvctl status is a check. Its exit code and text report silent members, lost members,
// chunks without a holder, and a second fleet that was taken for the first. ckvctl --wait waits for
// a ckvd that starts.
// Method: daemons and the command in this process.

#include <thread>

#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "client/grpc/watch_stub.h"
#include "proto/base/version.h"
#include "tests/server/services/moving_chunks_fixture.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using test::Call;
using test::ConfigOf;
using test::Soon;
using test::StartDaemon;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class StatusCommandTest : public test::MovingChunksTest {
 protected:
  // Registers `name` at an address where no process listens.
  uint64_t RegisterSilent(const std::string& name, v1::MemberRole role,
                          const std::string& kernel_target = "") {
    v1::RegisterRequest request;
    request.mutable_member()->set_id(name);
    request.mutable_member()->set_role(role);
    request.mutable_member()->set_control_address("127.0.0.1:1");
    request.mutable_member()->set_kernel_target(kernel_target);
    request.set_lease_ttl_ms(60'000);
    v1::RegisterReply reply;
    EXPECT_TRUE(directory_stub_->Register(Call().get(), request, &reply).ok());
    return reply.lease_id();
  }
  Ran Status(std::vector<std::string> more = {}) {
    more.insert(more.begin(), "status");
    return Run(more, /*json=*/false);
  }
  ctl::Json StatusJson() {
    return ctl::Json::parse(Run({"status", "-o", "json"}, /*json=*/false).text);
  }
};

TEST_F(StatusCommandTest, AHealthyFleetExitsWith0) {
  StartHolders(2);
  StartRequester();
  LoadOn("docs", test::MakeTestCorpus(test::TestGeometry(), {5, 6}, /*seed=*/40), {0, 1});
  // A requester reports the holders that it has contacted.
  ASSERT_EQ(Run({"explain", "--corpus", "docs", "--requester", requester_->address()}).code, 0);
  // The chunks of both holders are in one group, and one holder of the group is queried.
  const ctl::Json reported =
      Run({"explain", "--corpus", "docs", "--requester", requester_->address()}).json["holders"];
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_EQ(reported[0]["group"], reported[1]["group"]);
  EXPECT_NE(reported[0]["asked"], reported[1]["asked"]);
  const Ran ran = Status({"--requester", requester_->address()});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.text, AllOf(HasSubstr("answers"), HasSubstr("LAST PROBE"),
                              HasSubstr("WHEN IT WAS CHOSEN"), Not(HasSubstr("is gone"))));
  // Operators look for a member's uptime and build. The epoch is in the JSON.
  EXPECT_THAT(ran.text, AllOf(HasSubstr("UP  VERSION"), HasSubstr(" s  " + std::string(Version())),
                              Not(HasSubstr("EPOCH"))));
  const ctl::Json status = StatusJson();
  for (const ctl::Json& member : status.at("members")) {
    EXPECT_EQ(member["version"], std::string(Version()));
    EXPECT_GT(member["epoch"], 0);
    EXPECT_LT(member["up_ms"], 600'000);
  }
}

// Checks again and again, for a while.
template <typename Condition>
bool BecomesTrue(Condition&& condition) {
  const Instant give_up = Soon();
  while (!condition()) {
    if (Clock::Real()->Now() >= give_up) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_F(StatusCommandTest, AnEngineIsShownWhileItRunsAndNotMissedAfterwards) {
  StartHolders(1);
  EXPECT_THAT(Status().text, Not(HasSubstr("ENGINE")));
  WatchOptions options;
  options.addresses = directory_->address();
  options.engine = EngineFacts{.name = "vllm",
                               .host = "node7",
                               .pid = 77,
                               .model = "3bb4fde8a1c2",
                               .rank = 1,
                               .rank_count = 2,
                               .version = "0.1.0"};
  auto engine = std::make_unique<WatchStub>(
      options, [](std::string_view) {}, [](const absl::Status&) {});
  ASSERT_TRUE(BecomesTrue([&] { return StatusJson()["engines"].size() == 1; }));
  const Ran ran = Status();
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.text, testing::ContainsRegex("vllm +node7 +77 +1 of 2 .* 0.1.0 +3bb4fde8a1c2"));
  const ctl::Json shown = StatusJson()["engines"][0];
  EXPECT_EQ(shown["rank"], 1);
  EXPECT_EQ(shown["rank_count"], 2);
  EXPECT_EQ(shown["model"], "3bb4fde8a1c2");
  EXPECT_LT(shown["up_ms"], 600'000);
  engine.reset();
  EXPECT_TRUE(BecomesTrue([&] { return StatusJson()["engines"].empty(); }));
  EXPECT_EQ(Status().code, 0);
  EXPECT_EQ(Run({"health"}, /*json=*/false).code, 0);
}

TEST_F(StatusCommandTest, AFleetOfSeveralKernelTargetsIsCalledMixed) {
  StartHolders(2);
  EXPECT_THAT(Status().text, Not(HasSubstr("mixed kernel targets")));
  EXPECT_EQ(StatusJson()["kernel_targets"].size(), 1u);
  RegisterSilent("other", v1::MEMBER_ROLE_HOLDER, "SVE2");
  EXPECT_THAT(Status().text, AllOf(HasSubstr("mixed kernel targets"), HasSubstr("(2 holders)"),
                                   HasSubstr("SVE2 (1 holder)")));
  EXPECT_EQ(StatusJson()["kernel_targets"]["SVE2"], 1);
  // The remedy names a target that all holders have, as far as they report their targets.
  const std::string best(KernelTargets().front());
  EXPECT_THAT(Status().text, HasSubstr("start every holder and requester with --kernel-target=" +
                                       best + ", the fastest\nthat all holders here have"));
  EXPECT_EQ(StatusJson()["kernel_target_of_all"], best);
  EXPECT_EQ(StatusJson()["holders"][0]["kernel_targets"][0], best);
  const ctl::Json choice = StatusJson()["holders"][0]["kernel_choice"];
  EXPECT_EQ(choice["origin"], "measured");
  EXPECT_EQ(choice["reason"], ChosenKernel().reason);
  EXPECT_EQ(choice["f32_gflop_per_s"], ChosenKernel().rates.f32);
}

TEST_F(StatusCommandTest, ASilentMemberIsAnError) {
  StartHolders(1);
  for (const auto role : {v1::MEMBER_ROLE_HOLDER, v1::MEMBER_ROLE_REQUESTER}) {
    const uint64_t lease = RegisterSilent("mute", role);
    const Ran ran = Status();
    EXPECT_EQ(ran.code, 4);
    EXPECT_THAT(ran.err, AllOf(HasSubstr("mute at 127.0.0.1:1 has a lease but does not answer"),
                               Not(HasSubstr("h0 "))));
    v1::DeregisterRequest request;
    request.set_lease_id(lease);
    v1::DeregisterReply reply;
    ASSERT_TRUE(directory_stub_->Deregister(Call().get(), request, &reply).ok());
  }
  const Ran ran = Status();
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.text, Not(HasSubstr("mute")))
      << "it left on purpose, and nothing is placed on it";
}

TEST_F(StatusCommandTest, ChunksThatNoLiveHolderHasAreCounted) {
  StartHolders(2);
  LoadOn("safe", test::MakeTestCorpus(test::TestGeometry(), {5}, /*seed=*/41), {0, 1});
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 6, 7}, /*seed=*/42);
  for (const size_t i : {0u, 1u}) PutOn(i, corpus);
  ASSERT_TRUE(
      test::Publish(*directory_stub_, corpus.Publish("docs", "", {{{"h0"}}, {{"h1"}}})).ok());
  EXPECT_EQ(Status().code, 0);
  holders_[1].reset();
  const Ran ran = Status();
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("corpus docs is incomplete: no live holder has 1 of its 3 chunks"),
                    Not(HasSubstr("safe"))));
  EXPECT_THAT(ran.text, AllOf(HasSubstr("holder h1 at"), HasSubstr("is gone")));
  EXPECT_THAT(Run({"corpus", "show", "docs"}, /*json=*/false).text,
              AllOf(HasSubstr("h1 (gone)\n"), HasSubstr("  h0\n"), HasSubstr("age:")));
  const ctl::Json shown = Run({"corpus", "show", "docs"}).json;
  EXPECT_EQ(shown["chunks"][0]["gone"].size() + shown["chunks"][1]["gone"].size() +
                shown["chunks"][2]["gone"].size(),
            1u);
  EXPECT_LT(shown["age_ms"], 600'000);
  const ctl::Json json = StatusJson();
  ASSERT_EQ(json["missing"].size(), 2u);
  EXPECT_EQ(json["missing"][0]["corpus"], "docs");
  EXPECT_EQ(json["missing"][0]["missing_count"], 1);
  EXPECT_EQ(json["missing"][1]["missing_count"], 0) << "h0 has all of the other one";
  EXPECT_EQ(json["ended"][0]["id"], "h1");
}

TEST_F(StatusCommandTest, TwoFleetsAreNotShownAsOne) {
  StartRequester();
  const std::unique_ptr<Daemon> other = StartDaemon(ConfigOf({"directory"}, "d2"));
  const Ran ran =
      RunAt("", {"status", "--directory", other->address(), "--requester", requester_->address()});
  EXPECT_EQ(ran.code, 7);
  EXPECT_THAT(ran.err, AllOf(HasSubstr(other->address()), HasSubstr(directory_->address())));
  EXPECT_THAT(ran.text, AllOf(HasSubstr("another fleet"), Not(HasSubstr("FROM REQUESTER"))));
}

// Holders that are about to return are no damage, and the directory runs.
TEST_F(StatusCommandTest, ADirectoryThatHasJustStartedWaitsForItsHolders) {
  EndDirectory();
  Config config = ConfigOf({"directory"}, "d");
  config.directory_path = test::TempPath("directory");
  StartDirectory(config);
  StartHolders(1);
  LoadOn("docs", test::MakeTestCorpus(test::TestGeometry(), {5}, /*seed=*/44), {0});
  holders_.clear();
  EndDirectory();
  StartDirectory(config);
  const Ran ran = Status();
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.text,
              AllOf(HasSubstr("the directory has just started, and waits for 1 holder: h0\n"),
                    Not(HasSubstr("no members")), Not(HasSubstr("start the holders"))));
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("holder h0 is not back yet"), Not(HasSubstr("is it running"))));
  const ctl::Json json = StatusJson();
  EXPECT_THAT(json["returning"].get<std::string>(), HasSubstr("was just started"));
  EXPECT_TRUE(json["missing"].empty());
  EXPECT_THAT(Run({"health"}, /*json=*/false).text, Not(HasSubstr("is it running")));
}

TEST_F(StatusCommandTest, ASilentHolderIsNamedOnce) {
  RegisterSilent("mute", v1::MEMBER_ROLE_HOLDER);
  EXPECT_THAT(Run({"health"}, /*json=*/false).text,
              AllOf(testing::StartsWith(
                        "broken: holder mute at 127.0.0.1:1 has a lease but does not answer "
                        "ckvctl: "),
                    HasSubstr("Stats: cannot connect: connection refused"),
                    HasSubstr("(member-unreachable)")));
}

// A daemon of another role reports that, and the error names no command that needs this address.
TEST_F(StatusCommandTest, AHolderIsNoDirectory) {
  StartHolders(1);
  const Ran ran = RunAt("", {"status", "--directory", holders_[0]->address()});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("not served there"), HasSubstr("--role=directory"),
                             Not(HasSubstr("ckvctl status shows"))));
}

TEST_F(StatusCommandTest, ANameThatIsNearlyRightBringsTheNearest) {
  StartHolders(1);
  LoadOn("docs", test::MakeTestCorpus(test::TestGeometry(), {5}, /*seed=*/45), {0});
  EXPECT_THAT(Run({"corpus", "show", "Docs"}, /*json=*/false).err, HasSubstr("did you mean docs?"));
  const Ran drop = Run({"corpus", "drop", "docs", "--tenant", "acme"}, /*json=*/false);
  EXPECT_EQ(drop.code, 3);
  EXPECT_THAT(drop.err, HasSubstr("docs is shared: drop it without --tenant"));
  const Ran gc = Run({"gc", "--gone", "h00"}, /*json=*/false);
  EXPECT_EQ(gc.code, 2);
  EXPECT_THAT(gc.err, AllOf(HasSubstr("--gone h00: no member"), HasSubstr("did you mean h0?")));
  EXPECT_EQ(Run({"gc", "--gone", "h0"}, /*json=*/false).code, 0);
  EXPECT_THAT(Run({"gc", "--dry-run", "--grace", "0"}, /*json=*/false).err,
              HasSubstr("warning: --grace 0"));
}

// The same directory by another name.
TEST_F(StatusCommandTest, ADirectoryByAnotherNameIsTheSame) {
  StartHolders(1);
  StartRequester();
  const std::string port = directory_->address().substr(directory_->address().rfind(':'));
  for (const std::string& requester :
       {requester_->address(),
        "localhost" + requester_->address().substr(requester_->address().rfind(':'))}) {
    const Ran ran =
        RunAt("", {"status", "--directory", "localhost" + port, "--requester", requester});
    EXPECT_EQ(ran.code, 0) << ran.err;
  }
}

// Goal: a command of a script that has just started its ckvd waits for it. Method: the command runs
// before the daemon does, at an address that was free a moment ago.
TEST_F(StatusCommandTest, WaitsForAServerThatStarts) {
  Config config = MemberOf({"requester"}, "late");
  config.listen = StartDaemon(config)->address();
  Ran ran;
  std::thread command([&] {
    ran = RunAt("", {"corpus", "list", "--wait", "20s", "--requester", config.listen});
  });
  const std::unique_ptr<Daemon> late = StartDaemon(config);
  command.join();
  EXPECT_EQ(ran.code, 0) << ran.err;
}

TEST_F(StatusCommandTest, AWaitEnds) {
  EXPECT_EQ(RunAt("", {"corpus", "list", "--wait", "50ms", "--directory", "127.0.0.1:1"}).code, 4);
  EXPECT_EQ(RunAt("", {"corpus", "list", "--wait", "soon"}).code, 2);
}

}  // namespace
}  // namespace ckv
