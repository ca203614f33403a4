// Goal: in a fleet of two kernel targets, calls of f32 partials use one target from the first call
// on, a target that all are given makes equal bits everywhere, and a restart changes no target.
// Method: real holders, each given its target or left to choose, and a requester in this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "client/cost/kernel_record.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/requester.h"
#include "tests/e2e/process.h"
#include "tests/server/services/control_client.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using test::Call;
using test::Process;
using testing::HasSubstr;

Instant After(Duration duration) { return Clock::Real()->Now() + duration; }
// A daemon is up in 50 ms; a loaded machine under a sanitizer gets its time.
constexpr Duration kStartTime = std::chrono::seconds(30);
constexpr uint32_t kRows = 16;
// Two targets whose bits differ, which every machine has.
constexpr std::string_view kModel = "AMX_MODEL";
std::string_view VectorTarget() {
  for (const std::string_view target : KernelTargets()) {
    if (target != "AMX" && target != "AVX512_BF16") return target;
  }
  return "";
}

class KernelTargetTest : public testing::Test {
 protected:
  KernelTargetTest() : watch_(test::TempPath("")) {}

  // Starts a daemon and waits until it serves.
  void Start(const std::string& name, std::vector<std::string> arguments) {
    static int count = 0;  // a process that was killed leaves its file
    const std::string ready = test::TempPath(absl::StrCat(name, ".", ++count, ".ready"));
    arguments.insert(arguments.end(),
                     {"--name=" + name, "--listen=127.0.0.1:0", "--ready-file=" + ready});
    nodes_.push_back(std::make_unique<Process>(CKVD_PATH, arguments, test::TempPath(name)));
    ASSERT_TRUE(watch_.Await(ready, true, nodes_.back()->pidfd(), After(kStartTime)))
        << nodes_.back()->log();
    std::ifstream(ready) >> address_;
  }
  // A directory, and holders h0, h1, ... of these targets, which all have all chunks.
  void StartFleet(const std::vector<std::string_view>& targets) {
    nodes_.clear();
    Start("directory", {"--role=directory"});
    directory_address_ = address_;
    directory_ = v1::DirectoryService::NewStub(MakeChannel(directory_address_));
    for (size_t i = 0; i < targets.size(); ++i) {
      Start(absl::StrCat("h", i), {"--role=holder", "--directory=" + directory_address_,
                                   absl::StrCat("--kernel-target=", std::string(targets[i]))});
      const auto holder = v1::HolderService::NewStub(MakeChannel(address_));
      for (const test::TestChunk& chunk : corpus_.chunks)
        ASSERT_TRUE(test::Put(*holder, corpus_.geometry, chunk).ok());
    }
  }
  // Publishes the chunks, the i-th at the holders placement[i], in that order.
  void Publish(const std::string& name, const std::vector<std::vector<std::string>>& placement) {
    Corpus published = corpus_.Publish(name, "", {{{"h0"}}});
    for (size_t i = 0; i < placement.size(); ++i) {
      published.chunks[i].set_holders({});
      for (const std::string& holder : placement[i])
        published.chunks[i].mutable_holders().push_back({holder});
    }
    const grpc::Status status = test::Publish(*directory_, published);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  // The answer to the first call of a new requester.
  std::vector<float> FirstAnswer(const std::string& name, AttendReport* report) {
    DirectoryStub directory(directory_address_, Clock::Real());
    HolderStubFactory holders(Clock::Real());
    const auto requester = *Requester::Create({}, &directory, &holders);
    AttendCall call;
    call.deadline = After(kStartTime);
    call.corpus = *requester->Resolve(name, "", call.deadline);
    call.layer = 1;
    call.q = {q_.data(), kRows, corpus_.geometry.d_qk};
    call.wire = PartialDtype::kF32;
    const size_t values = size_t{kRows} * corpus_.geometry.d_v;
    std::vector<float> all(values + 2 * kRows);
    const PartialView out = {all.data(), all.data() + values, all.data() + values + kRows,
                             PartialDtype::kF32};
    const absl::Status status = requester->Attend(call, out, report);
    EXPECT_TRUE(status.ok()) << status;
    return all;
  }

  const test::TestCorpus corpus_ = test::MakeTestCorpus(test::TestGeometry(), {300, 200}, 7);
  std::mt19937 rng_{8};
  const std::vector<uint16_t> q_ = test::RandomBf16(size_t{kRows} * corpus_.geometry.d_qk, rng_);
  test::FolderWatch watch_;
  std::vector<std::unique_ptr<Process>> nodes_;
  std::string address_;  // of the last one
  std::string directory_address_;
  std::unique_ptr<v1::DirectoryService::Stub> directory_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_F(KernelTargetTest, TheFirstCallKeepsToHoldersOfOneTarget) {
  const KernelTargetId vector = KernelTargetIdOf(VectorTarget());
  StartFleet({VectorTarget(), kModel, VectorTarget()});
  // Of the second chunk's holders, the one of another target is listed first.
  Publish("replicas", {{"h0"}, {"h1", "h2"}});
  Publish("alone", {{"h0"}, {"h1"}});
  Publish("vector", {{"h0"}, {"h2"}});
  AttendReport report;
  const std::vector<float> want = FirstAnswer("vector", &report);
  EXPECT_EQ(report.kernel_target, vector);
  EXPECT_TRUE(SameBits(FirstAnswer("replicas", &report), want));
  EXPECT_EQ(report.kernel_target, vector);
  EXPECT_TRUE(report.same_bits_anywhere);
  // If there is no choice, the report states that.
  EXPECT_FALSE(SameBits(FirstAnswer("alone", &report), want));
  EXPECT_TRUE(report.targets_differ);
  EXPECT_FALSE(report.same_bits_anywhere);
}

TEST_F(KernelTargetTest, ATargetThatAllAreGivenMakesEqualBits) {
  StartFleet({VectorTarget(), VectorTarget()});
  AttendReport report;
  std::vector<float> want;
  for (const char* holder : {"h0", "h1"}) {
    Publish(holder, {{"h0"}, {holder}});
    const std::vector<float> got = FirstAnswer(holder, &report);
    if (want.empty()) want = got;
    EXPECT_TRUE(SameBits(got, want));
    EXPECT_EQ(report.kernel_target, KernelTargetIdOf(VectorTarget()));
    EXPECT_TRUE(report.same_bits_anywhere);
  }
}

// The record that chooses a target other than the one of `record`.
KernelRecord Turned(KernelRecord record) {
  const bool is_unit = record.target == kAmxTarget || record.target == kDotTarget;
  record.rates.f32 = 100;
  for (double* rate : {&record.rates.amx, &record.rates.dot}) {
    if (*rate > 0) *rate = is_unit ? 1 : 1000;
  }
  const bool amx = record.rates.amx > 0;
  record.target = std::string(is_unit ? VectorTarget() : amx ? kAmxTarget : kDotTarget);
  return record;
}

// A machine whose rates are near the rule's threshold measures either target. The changed file
// represents a start that measured otherwise.
TEST_F(KernelTargetTest, ARestartKeepsTheChoice) {
  const std::string folder = test::TempPath("kept"), path = folder + "/KERNEL";
  const auto start = [&] {
    nodes_.clear();
    Start("one", {"--role=directory,holder", "--store-path=" + folder});
    v1::StatsReply stats;
    const auto holder = v1::HolderService::NewStub(MakeChannel(address_));
    EXPECT_TRUE(holder->Stats(Call().get(), {}, &stats).ok());
    return stats;
  };
  const v1::StatsReply measured = start();
  EXPECT_EQ(measured.kernel_choice().origin(), "measured");
  const std::string text = test::ReadWhole(path);
  const auto record = ParseKernelRecord(text);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->target, measured.kernel_target());
  EXPECT_THAT(nodes_[0]->log(), HasSubstr("kernel target " + record->target + ", measured: "));
  const v1::StatsReply kept = start();
  EXPECT_EQ(kept.kernel_choice().origin(), "kept");
  EXPECT_EQ(kept.kernel_choice().reason(), measured.kernel_choice().reason());
  EXPECT_THAT(nodes_[0]->log(), HasSubstr("kept in " + path));
  EXPECT_EQ(test::ReadWhole(path), text);

  std::ofstream(path) << "not a choice";
  EXPECT_EQ(start().kernel_choice().origin(), "measured");
  EXPECT_THAT(nodes_[0]->log(),
              HasSubstr(path + " keeps is not used, and chosen again: it is damaged"));
  const auto again = ParseKernelRecord(test::ReadWhole(path));
  ASSERT_TRUE(again.ok()) << again.status();

  const KernelChoice here = ChosenKernel();
  if (here.rates.f32 == 0)
    GTEST_SKIP() << "no second target to choose: " << here.reason
                 << "; to run it: a processor with AVX512_BF16 or AMX";
  const KernelRecord other = Turned(*again);
  std::ofstream(path) << FormatKernelRecord(other);
  const v1::StatsReply turned = start();
  EXPECT_EQ(turned.kernel_target(), other.target);
  EXPECT_EQ(turned.kernel_choice().origin(), "kept");
  EXPECT_EQ(*ParseKernelRecord(test::ReadWhole(path)), other);
}

}  // namespace
}  // namespace ckv
