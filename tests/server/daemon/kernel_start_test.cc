// Goal: a kept choice of a kernel target is used, or the log gives the reason in a line, and the
// choice is written again. Method: the folder of a store, and changed records of this machine. A
// choice other than this process' own needs another process: tests/e2e/kernel_target_test.cc.

#include "server/daemon/kernel_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "client/cost/kernel_record.h"
#include "store/disk/chunk_folder.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class KernelStartTest : public testing::Test {
 protected:
  KernelStartTest() {
    static int count = 0;
    config_.role = {"holder"};
    config_.store_path = test::TempPath("store" + std::to_string(++count));
  }
  // What a ckvd does at its start.
  KernelStart Start(const Profile* profile = nullptr) {
    auto start = SettleKernelTarget(config_, profile);
    EXPECT_TRUE(start.ok()) << start.status();
    const auto folder = ChunkFolder::Open({.path = config_.store_path});
    EXPECT_TRUE(folder.ok()) << folder.status();
    if (start->to_keep) {
      const absl::Status kept = KeepKernelTarget(config_);
      EXPECT_TRUE(kept.ok()) << kept;
    }
    return *std::move(start);
  }
  std::string path() const { return config_.store_path + "/KERNEL"; }
  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }
  void Write(const std::string& text) { std::ofstream(path()) << text; }

  Config config_;
};

TEST_F(KernelStartTest, TheFirstStartMeasuresAndTheNextKeeps) {
  const KernelStart first = Start();
  EXPECT_THAT(first.warning, IsEmpty());
  EXPECT_THAT(first.reason, AllOf(HasSubstr("kernel target " + std::string(KernelTarget())),
                                  HasSubstr(", measured: "), HasSubstr(ChosenKernel().reason)));
  const std::string text = Text();
  const auto record = ParseKernelRecord(text);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(*record, ChosenKernelRecord());
  const KernelStart second = Start();
  EXPECT_FALSE(second.to_keep);
  EXPECT_THAT(second.warning, IsEmpty());
  EXPECT_THAT(second.reason, HasSubstr(", kept in " + path() + ": "));
  EXPECT_EQ(Text(), text);
}

TEST_F(KernelStartTest, AnUnusableFileIsNamedAndWrittenAgain) {
  (void)Start();
  const std::string good = Text();
  const auto changed = [&](auto change) {
    KernelRecord record = *ParseKernelRecord(good);
    change(record);
    return FormatKernelRecord(record);
  };
  std::string damaged = good;
  damaged[20] ^= 4;
  const std::pair<std::string, std::string> cases[] = {
      {damaged, "it is damaged: its checksum is wrong"},
      {good.substr(0, 100), "it is damaged"},
      {"", "it is damaged"},
      {std::string(5000, 'x'), "5000 bytes"},
      {changed([](KernelRecord& r) { r.signature = "another"; }), "of another machine or build"},
      {changed([](KernelRecord& r) { r.target = "PDP11"; }), "no kernel target 'PDP11'"},
  };
  for (const auto& [text, why] : cases) {
    SCOPED_TRACE(why);
    Write(text);
    const KernelStart start = Start();
    EXPECT_TRUE(start.to_keep);
    EXPECT_THAT(start.warning, AllOf(HasSubstr(path()), HasSubstr(why), HasSubstr("chosen again")));
    EXPECT_EQ(std::count(start.warning.begin(), start.warning.end(), '\n'), 0);
    EXPECT_THAT(start.reason, HasSubstr("measured"));
    EXPECT_EQ(Text(), good);
    EXPECT_THAT(Start().warning, IsEmpty());
  }
}

TEST_F(KernelStartTest, AProfileKeepsTheChoiceOfARequester) {
  config_ = Config();
  config_.role = {"requester"};
  config_.requester_profile = "/etc/ckv/profile.json";
  Profile profile;
  const auto start = [&] { return *SettleKernelTarget(config_, &profile); };
  EXPECT_THAT(start().reason, HasSubstr("measured"));
  EXPECT_THAT(start().warning, IsEmpty());
  profile.kernel = ChosenKernelRecord();
  EXPECT_THAT(start().reason, HasSubstr("kept in /etc/ckv/profile.json"));
  EXPECT_FALSE(start().to_keep) << "a profile is its owner's to write";
  profile.kernel->signature = "another";
  EXPECT_THAT(start().reason, HasSubstr("measured"));
  EXPECT_THAT(start().warning, AllOf(HasSubstr("profile.json"), HasSubstr("another machine")));
}

TEST_F(KernelStartTest, AHolderWithoutAFileTakesTheChoiceOfItsProfile) {
  config_.role = {"holder", "requester"};
  config_.requester_profile = "p";
  Profile profile;
  profile.kernel = ChosenKernelRecord();
  const KernelStart start = Start(&profile);
  EXPECT_THAT(start.reason, HasSubstr("kept in p"));
  EXPECT_EQ(*ParseKernelRecord(Text()), *profile.kernel);
}

TEST_F(KernelStartTest, AForcedTargetIsNotKept) {
  config_.kernel_target = "AMX_MODEL";
  const KernelStart start = Start();
  EXPECT_EQ(KernelTarget(), "AMX_MODEL");
  EXPECT_EQ(start.reason, "kernel target AMX_MODEL: kernel_target names it");
  EXPECT_FALSE(std::filesystem::exists(path()));
  config_.kernel_target = "PDP11";
  EXPECT_EQ(SettleKernelTarget(config_, nullptr).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(ForceKernelTarget("").ok());
}

// A holder whose device locks no memory, by each setting of `backend`.
TEST(StartHolderOverTest, TheProcessorTakesTheDevicesPlaceWithAutoOnly) {
  test::DeferredBackend device(test::DeferredBackend::ReachPinned(), "CUDA_SM90");
  const auto fabric = NewLoopbackFabric(Clock::Real());
  HolderOptions options;
  options.capacity_bytes = 1 << 20;
  options.fabrics = {fabric.get()};
  Config config;
  for (const auto failure :
       {&test::DeferredBackend::FailPins, &test::DeferredBackend::FailStreams}) {
    (device.*failure)(true);
    config.backend = "cuda";
    DaemonBackends backends = {.holder = &device, .requester = &device};
    EXPECT_EQ(StartHolderOver(backends, config, options).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(backends.holder, &device);
    config.backend = "auto";
    const auto holder = StartHolderOver(backends, config, options);
    ASSERT_TRUE(holder.ok()) << holder.status();
    EXPECT_EQ((*holder)->kernel_target(), KernelTarget());
    EXPECT_EQ(backends.holder, Backend::Cpu());
    EXPECT_EQ(backends.requester, Backend::Cpu());
    EXPECT_EQ(device.pin_count(), 0u);
    (device.*failure)(false);
  }
  DaemonBackends backends = {.holder = &device};
  EXPECT_EQ((*StartHolderOver(backends, config, options))->kernel_target(), "CUDA_SM90");
  // Other errors stay errors with auto, too.
  HolderOptions wrong = options;
  wrong.session_count_max = 0;
  EXPECT_EQ(StartHolderOver(backends, config, wrong).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backends.holder, &device);
}

// A full disk costs the next start a measurement, and nothing else.
TEST_F(KernelStartTest, AFolderThatTakesNoFileIsNoReasonNotToStart) {
  config_.store_path = "/dev/null";
  const auto start = SettleKernelTarget(config_, nullptr);
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_TRUE(start->to_keep);
  EXPECT_FALSE(KeepKernelTarget(config_).ok());
}

}  // namespace
}  // namespace ckv
