// Goal: a signal that arrives while a kernel computes runs its handler on an alternate stack of the
// size in client/requester.h, and changes no bit of the result. Method: one thread computes, and
// another sends it signals one after the other; on every target of the machine, including AMX if
// there is one.

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "attention/matrix/matrix_kernel.h"
#include "attention/mla_partial.h"
#include "tests/attention/each_target.h"
#include "tests/attention/random_piece.h"

namespace ckv {
namespace {

using test::ForEachTarget;
using test::PieceOptions;
using test::TestPiece;

// The bytes that the handler below needs in addition to the frame, as the header requires.
constexpr size_t kHandlerBytes = 16384;
constexpr int kSignalCount = 20;

// Written by the handler, which must not touch anything else.
std::atomic<int> handled, in_kernel;
std::atomic<bool> computing, elsewhere;
std::atomic<uintptr_t> stack_begin, stack_end;

void Handle(int /*signal*/) {
  volatile char stack[kHandlerBytes / 2];
  for (size_t i = 0; i < sizeof(stack); i += 64) stack[i] = 1;
  const auto here = reinterpret_cast<uintptr_t>(stack);
  if (here < stack_begin || here >= stack_end) elsewhere = true;
  if (computing) ++in_kernel;
  ++handled;
}

// An alternate stack of the calling thread, above an inaccessible page.
class SignalStack {
 public:
  SignalStack() : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    bytes_ = (getauxval(AT_MINSIGSTKSZ) + kHandlerBytes + page_ - 1) / page_ * page_;
    void* const memory =
        mmap(nullptr, page_ + bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<char*>(memory);
    EXPECT_EQ(mprotect(memory_ + page_, bytes_, PROT_READ | PROT_WRITE), 0);
    stack_t stack = {};
    stack.ss_sp = memory_ + page_;
    stack.ss_size = bytes_;
    EXPECT_EQ(sigaltstack(&stack, &before_), 0) << std::strerror(errno);
    stack_begin = reinterpret_cast<uintptr_t>(stack.ss_sp);
    stack_end = stack_begin + bytes_;
  }
  ~SignalStack() {
    EXPECT_EQ(sigaltstack(&before_, nullptr), 0);
    munmap(memory_, page_ + bytes_);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  const size_t page_;
  size_t bytes_ = 0;
  char* memory_ = nullptr;
  stack_t before_ = {};
};

std::vector<std::byte> BitsOf(const TestPiece& piece) {
  std::vector<std::byte> all;
  for (uint32_t i = 0; i < piece.piece().q.count; ++i) {
    const std::vector<std::byte> row = piece.RowBits(i);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

TEST(SignalStack, AHandlerRunsOnOneOfTheDocumentedSizeWhileAKernelComputes) {
#if defined(CKV_TEST_THREAD_SANITIZER)
  GTEST_SKIP() << "the thread sanitizer delivers signals itself, later and on another stack"
               << "; to run it: tests/run.sh, which has no sanitizer";
#endif
  (void)matrix::AmxUnit();  // requests the tile registers, if the machine has them
  struct sigaction action = {}, before = {};
  action.sa_handler = Handle;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR2, &action, &before), 0);
  elsewhere = false;
  PieceOptions options;
  options.q_count = 4;
  options.row_count = 130;
  std::mt19937 rng(31);
  TestPiece piece(options, &rng);
  ForEachTarget([&] {
    WorkerPool pool(1);
    AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
    const std::vector<std::byte> want = BitsOf(piece);
    handled = in_kernel = 0;
    std::atomic<bool> ready{false};
    int wrong = 0;
    std::thread computer([&] {
      const SignalStack stack;
      ready = true;
      while (handled < kSignalCount || in_kernel == 0) {
        computing = true;
        AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
        computing = false;
        wrong += BitsOf(piece) != want;
      }
    });
    while (!ready) std::this_thread::yield();
    for (int sent = 0; sent < kSignalCount || in_kernel == 0; ++sent) {
      pthread_kill(computer.native_handle(), SIGUSR2);
      while (handled <= sent) std::this_thread::yield();
    }
    computer.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_FALSE(elsewhere) << "a handler did not run on the alternate stack";
  });
  ASSERT_EQ(sigaction(SIGUSR2, &before, nullptr), 0);
}

// In a process that has the tile registers, sigaltstack refuses a stack that is too small for a
// frame, and the error is not delayed until a signal arrives.
TEST(SignalStack, LinuxRefusesATooSmallOneOnceTilesAreGranted) {
  if (!matrix::AmxUnit().usable)
    GTEST_SKIP() << "no AMX here: " << matrix::AmxUnit().why_not
                 << "; to run it: a processor with AMX";
  std::thread([] {
    std::vector<char> memory(getauxval(AT_MINSIGSTKSZ) + kHandlerBytes);
    stack_t stack = {};
    stack.ss_sp = memory.data();
    stack.ss_size = 8192;  // the old SIGSTKSZ
    EXPECT_NE(sigaltstack(&stack, nullptr), 0);
    EXPECT_EQ(errno, ENOMEM);
    stack.ss_size = memory.size();
    EXPECT_EQ(sigaltstack(&stack, nullptr), 0);
    stack.ss_flags = SS_DISABLE;
    EXPECT_EQ(sigaltstack(&stack, nullptr), 0);
  }).join();
}

}  // namespace
}  // namespace ckv
