#include "server/daemon/start_limits.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "gmock/gmock.h"

namespace ckv {
namespace {

Config ConfigOf(std::vector<std::string> roles) {
  Config config;
  config.role = std::move(roles);
  return config;
}

TEST(StartLimits, MoreRolesNeedMoreThreads) {
  Config holder = ConfigOf({"holder"});
  const uint32_t alone = ThreadsAtStart(holder);
  EXPECT_GT(ThreadsAtStart(ConfigOf({"directory", "holder", "requester"})), alone);
  holder.compute_threads += 7;
  EXPECT_EQ(ThreadsAtStart(holder), alone + 7);
}

TEST(StartLimits, AreEnoughHere) {
  EXPECT_TRUE(CheckStartLimits(ConfigOf({"directory", "holder", "requester"})).ok());
}

// In children, because a limit of a process cannot be taken back.
TEST(StartLimitsDeathTest, TooFewDescriptorsAreNamed) {
  EXPECT_EXIT(
      {
        const rlimit limit = {16, 16};
        setrlimit(RLIMIT_NOFILE, &limit);
        const std::string why(CheckStartLimits(ConfigOf({"holder"})).message());
        (void)!write(STDERR_FILENO, why.data(), why.size());
        _exit(1);
      },
      testing::ExitedWithCode(1), "may have 16 \\(ulimit -n, LimitNOFILE\\)");
}

// Each thread needs 8 MiB of addresses for its stack.
TEST(StartLimitsDeathTest, TooFewThreadsAreNamed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs all addresses";
#endif
  EXPECT_EXIT(
      {
        Config config = ConfigOf({"holder"});
        config.compute_threads = 2000;
        const rlimit limit = {rlim_t{4} << 30, rlim_t{4} << 30};
        setrlimit(RLIMIT_AS, &limit);
        const absl::Status checked = CheckStartLimits(config);
        const std::string why(checked.message());
        (void)!write(STDERR_FILENO, why.data(), why.size());
        _exit(absl::IsResourceExhausted(checked) ? 1 : 2);
      },
      testing::ExitedWithCode(1), "threads at its start, and could start .* MiB of addresses");
}

TEST(StartLimitsDeathTest, AShortageThatNobodyHandlesIsALine) {
  const auto fail = [](const std::exception_ptr& unhandled) noexcept {
    EndShortagesWithALine();
    std::rethrow_exception(unhandled);
  };
  EXPECT_EXIT(fail(std::make_exception_ptr(std::bad_alloc())), testing::ExitedWithCode(1),
              "^ckvd: out of memory");
  const auto no_thread = std::make_error_code(std::errc::resource_unavailable_try_again);
  EXPECT_EXIT(fail(std::make_exception_ptr(std::system_error(no_thread))),
              testing::ExitedWithCode(1), "^ckvd: cannot start a thread: ");
  EXPECT_EXIT(fail(std::make_exception_ptr(7)), testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace ckv
