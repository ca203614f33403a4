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

// Ends this process as main does, with what is wrong with `limit` of `kind`.
void CheckUnder(int kind, rlim_t limit, const Config& config) {
  const rlimit both = {limit, limit};
  setrlimit(kind, &both);
  const absl::Status checked = CheckStartLimits(config);
  const std::string why(checked.message());
  (void)!write(STDERR_FILENO, why.data(), why.size());
  _exit(absl::IsResourceExhausted(checked) ? 1 : 2);
}

// In children, because a limit of a process cannot be taken back.
TEST(StartLimitsDeathTest, TooFewDescriptorsAreNamed) {
  EXPECT_EXIT(CheckUnder(RLIMIT_NOFILE, 16, ConfigOf({"holder"})), testing::ExitedWithCode(1),
              "may have 16 .ulimit -n, LimitNOFILE");
}

// Each thread needs 8 MiB of addresses for its stack.
TEST(StartLimitsDeathTest, TooFewThreadsAreNamed) {
#if defined(CKV_TEST_ADDRESS_SANITIZER) || defined(CKV_TEST_THREAD_SANITIZER)
  GTEST_SKIP() << "a sanitizer needs all addresses; to run it: the release preset";
#endif
  Config config = ConfigOf({"holder"});
  config.compute_threads = 2000;
  EXPECT_EXIT(CheckUnder(RLIMIT_AS, rlim_t{4} << 30, config), testing::ExitedWithCode(1),
              "threads at its start, but could start .* MiB of address space");
}

TEST(StartLimitsDeathTest, AnUnhandledShortageIsALine) {
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
