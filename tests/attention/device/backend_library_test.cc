// Goal: a program computes with the library next to it, and without one if that is allowed. A
// library that does not match the program is reported and not used. Method: libraries of
// tests/support/stand_in, in folders as an install has them.

#include "attention/device/backend_library.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/kernel_target.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

class BackendLibraryTest : public testing::Test {
 protected:
  BackendLibraryTest() {
    static int count = 0;
    root_ = test::TempPath("program" + std::to_string(++count));
    fs::create_directories(root_ + "/bin");
    fs::create_directories(root_ + "/lib/ckv");
  }
  std::string bin() const { return root_ + "/bin"; }
  static std::string StandIn(const std::string& name) {
    return std::string(STAND_INS) + "/" + name + "/libckv_cuda.so";
  }
  void Install(const std::string& name, const std::string& folder = "bin") {
    fs::copy_file(StandIn(name), root_ + "/" + folder + "/libckv_cuda.so");
  }
  // Backend auto continues without the library, and cuda refuses; both report why.
  void ExpectRefused(StatusCode code, const std::string& why) {
    const auto start = StartBackend("auto", bin());
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_EQ(start->backend, Backend::Cpu());
    EXPECT_TRUE(start->is_warning);
    EXPECT_THAT(start->reason, AllOf(HasSubstr("backend cpu: a GPU is not used"), HasSubstr(why)));
    const absl::Status refused = StartBackend("cuda", bin()).status();
    EXPECT_EQ(refused.code(), code) << refused;
    EXPECT_THAT(refused.ToString(), AllOf(HasSubstr(bin()), HasSubstr(why)));
    const auto without = StartBackend("cpu", bin());
    ASSERT_TRUE(without.ok()) << without.status();
    EXPECT_FALSE(without->is_warning);
  }

  std::string root_;
};

// One query over three rows gets the processor's answer, since the stand-in uses its arithmetic.
// All values are in memory of this process that the backend pins.
void ExpectComputes(Backend& backend) {
  const AttentionShape shape = {
      .d_qk = 96, .d_v = 64, .d_rope = 32, .row_dtype = RowDtype::kBf16, .softmax_scale = .1f};
  struct alignas(4096) Memory {
    std::array<uint16_t, 96 * 4> values;
    std::array<float, 64 + 2> out;
  };
  const auto answer = [&](Backend& by) {
    const auto memory = std::make_unique<Memory>();
    const auto bytes = std::as_writable_bytes(std::span(memory.get(), 1));
    EXPECT_TRUE(by.Pin(bytes).ok());
    for (size_t i = 0; i < memory->values.size(); ++i)
      memory->values[i] = 0x3f80 + i % 61;  // 1 and a little more
    AttentionPiece piece;
    piece.q = {memory->values.data(), 1, 96, MemoryKind::kPinned};
    piece.rows = {reinterpret_cast<const std::byte*>(memory->values.data() + 96), 3, 192,
                  MemoryKind::kPinned};
    float* const out = memory->out.data();
    piece.out = {out, out + 64, out + 65, PartialDtype::kF32, MemoryKind::kPinned};
    const auto stream = by.NewStream(1);
    EXPECT_TRUE(stream.ok()) << stream.status();
    EXPECT_TRUE(by.AttendPartials(shape, {&piece, 1}, **stream).ok());
    EXPECT_TRUE((*stream)->Wait().ok());
    by.Unpin(bytes);
    return memory->out;
  };
  const auto out = answer(backend);
  EXPECT_EQ(out, answer(*Backend::Cpu()));
  EXPECT_GT(out[0], 1);
}

TEST_F(BackendLibraryTest, WithoutOneTheProcessorComputes) {
  const auto start = StartBackend("auto", bin());
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->backend, Backend::Cpu());
  EXPECT_FALSE(start->is_warning);
  EXPECT_EQ(start->reason, "backend cpu: there is no " + bin() + "/libckv_cuda.so");
  const absl::Status refused = StartBackend("cuda", bin()).status();
  EXPECT_EQ(refused.code(), StatusCode::kNotFound);
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr(bin() + "/libckv_cuda.so"),
                    HasSubstr(bin() + "/../lib/ckv/libckv_cuda.so"), HasSubstr("backend: cpu")));
}

TEST_F(BackendLibraryTest, LoadsTheLibraryInTheProgramsFolder) {
  Install("works");
  for (const char* const name : {"auto", "cuda"}) {
    const auto start = StartBackend(name, bin());
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_EQ(start->backend->kernel_target(), "CUDA_SM90");
    EXPECT_FALSE(start->is_warning);
    EXPECT_EQ(start->reason, "backend cuda: " + bin() + "/libckv_cuda.so, kernels CUDA_SM90");
    ExpectComputes(*start->backend);
  }
  EXPECT_EQ(StartBackend("auto", bin())->backend, StartBackend("cuda", bin())->backend);
  EXPECT_EQ(StartBackend("cpu", bin())->backend, Backend::Cpu());
  EXPECT_NE(KernelTargetIdOf("CUDA_SM90"), KernelTargetId::kUnknown);
}

TEST_F(BackendLibraryTest, TheOneOfAnInstallIsFound) {
  Install("works", "lib/ckv");
  const auto start = StartBackend("cuda", bin());
  ASSERT_TRUE(start.ok()) << start.status();
  ExpectComputes(*start->backend);
}

TEST_F(BackendLibraryTest, PrefersTheLibraryInTheProgramsFolder) {
  Install("other_build", "lib/ckv");
  Install("works");
  EXPECT_TRUE(StartBackend("cuda", bin()).ok());
}

// The library that loads it is itself in lib, and finds the backend library of the programs in bin.
TEST_F(BackendLibraryTest, ALibraryLooksBelowItsOwnFolder) {
  Install("works", "lib/ckv");
  const auto start = StartBackend("cuda", root_ + "/lib", kFromLibrary);
  ASSERT_TRUE(start.ok()) << start.status();
  ExpectComputes(*start->backend);
  fs::remove(root_ + "/lib/ckv/libckv_cuda.so");
  EXPECT_THAT(StartBackend("cuda", root_ + "/lib", kFromLibrary).status().ToString(),
              AllOf(HasSubstr(root_ + "/lib/libckv_cuda.so"),
                    HasSubstr(root_ + "/lib/ckv/libckv_cuda.so")));
}

// A damaged one next to the program is not skipped silently.
TEST_F(BackendLibraryTest, AFileThatDoesNotLoadIsRefused) {
  std::ofstream(bin() + "/libckv_cuda.so") << "text";
  Install("works", "lib/ckv");
  ExpectRefused(StatusCode::kFailedPrecondition, "it does not load: ");
}

TEST_F(BackendLibraryTest, ALinkToNothingIsRefused) {
  fs::create_symlink("libckv_cuda.so.1", bin() + "/libckv_cuda.so");
  Install("works", "lib/ckv");
  ExpectRefused(StatusCode::kFailedPrecondition, "it does not load: ");
}

TEST_F(BackendLibraryTest, RefusesALibraryOfAnotherBuild) {
  Install("other_build");
  ExpectRefused(StatusCode::kFailedPrecondition,
                "it is of build ckv 0.0.1, commit abc, and this program of " + BackendBuild());
}

TEST_F(BackendLibraryTest, RefusesALibraryThatIsNoBackend) {
  Install("no_module");
  ExpectRefused(StatusCode::kFailedPrecondition, "it is no backend of ckv");
}

TEST_F(BackendLibraryTest, ReportsThatALibraryFindsNoDevice) {
  Install("no_device");
  ExpectRefused(StatusCode::kFailedPrecondition, "no GPU: the driver finds 0 devices");
}

TEST_F(BackendLibraryTest, AnotherNameIsRefused) {
  const absl::Status refused = StartBackend("rocm", bin()).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("rocm"), HasSubstr("auto, cpu and cuda")));
}

TEST_F(BackendLibraryTest, ThreadsOpenItOnce) {
  Install("works");
  std::vector<Backend*> found(8);
  std::vector<std::thread> threads;
  for (Backend*& one : found)
    threads.emplace_back([&one, this] { one = StartBackend("auto", bin())->backend; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(found, testing::Each(found[0]));
  EXPECT_NE(found[0], Backend::Cpu());
}

TEST_F(BackendLibraryTest, TheProgramIsInItsFolder) {
  EXPECT_TRUE(fs::exists(FolderOfProgram() + "/attention_device_tests")) << FolderOfProgram();
  static const char here = 0;
  EXPECT_EQ(FolderOfCode(&here), FolderOfProgram());
  EXPECT_EQ(FolderOfCode(nullptr), "");
  EXPECT_EQ(StartBackend("cuda", "", kFromLibrary).status().code(), absl::StatusCode::kNotFound);
  const auto none = StartBackend("auto", "", kFromLibrary);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->backend, Backend::Cpu());
}

}  // namespace
}  // namespace ckv
