#include "tests/sim/child.h"

#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/base/config.h"
#include "proto/base/status.h"

namespace ckv::sim {

void FixAddresses(char** argv) {
  const int now = personality(0xffffffff);
  if (now == -1 || (now & ADDR_NO_RANDOMIZE) != 0) return;
  if (personality(static_cast<unsigned long>(now | ADDR_NO_RANDOMIZE)) == -1) return;
  execv("/proc/self/exe", argv);
}

namespace {

// Tables of Abseil iterate by the pages that they are on, so the heap must be the same in every run
// (I8). What ran before main left another one each time: libhwy measures its timer until it is
// sure. Takes all free blocks for good, and lets the heap go on at a round address. A sanitizer has
// a heap of its own.
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && !defined(ABSL_HAVE_THREAD_SANITIZER)
void LeaveOldHeap() {
  constexpr size_t kStep = size_t{8} << 20, kSmall = 1040, kLarge = size_t{128} << 10;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(4 * kStep));
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(16 * kStep));
  static void* volatile taken = nullptr;  // so that no call is left out
  const auto take = [](size_t bytes) {
    taken = std::malloc(bytes);
    return reinterpret_cast<uintptr_t>(taken);
  };
  const uintptr_t end = take(kStep);  // free blocks are below it
  const auto take_all = [&](size_t bytes) {
    while (take(bytes) < end) {
    }
  };
  // A larger block serves a smaller one. Small ones are kept by their sizes.
  for (size_t bytes = kLarge; bytes > kSmall; bytes /= 2) take_all(bytes);
  for (size_t bytes = kSmall; bytes >= 16; bytes -= 16) take_all(bytes);
  const uintptr_t last = take(kLarge) + kLarge;
  take((last + kStep) / kStep * kStep - last);
}
#else
void LeaveOldHeap() {}
#endif

// A turn that passes between threads of one processor wakes no other one.
void StayOnProcessor(uint32_t number) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof(all), &all) != 0) return;
  CPU_ZERO(&one);
  auto before = static_cast<int>(number) % CPU_COUNT(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) && before-- == 0) CPU_SET(cpu, &one);
  }
  sched_setaffinity(0, sizeof(one), &one);
}

}  // namespace

Child::Child(const std::function<int(std::string& text)>& run, uint32_t processor,
             unsigned seconds_max) {
  int ends[2];
  CKV_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  pid_ = fork();
  CKV_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    close(ends[0]);
    alarm(seconds_max);
    mallopt(M_ARENA_MAX, 1);
    LeaveOldHeap();
    StayOnProcessor(processor);
    std::string text;
    const int code = run(text);
    for (size_t at = 0; at < text.size();) {
      const ssize_t written = write(ends[1], text.data() + at, text.size() - at);
      if (written <= 0) break;
      at += static_cast<size_t>(written);
    }
    _exit(code);  // killed threads still wait
  }
  close(ends[1]);
  fd_ = ends[0];
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      fd_(std::exchange(other.fd_, -1)),
      text_(std::move(other.text_)) {}

bool Child::Read() {
  char buffer[4096];
  const ssize_t count = read(fd_, buffer, sizeof(buffer));
  if (count < 0 && errno == EINTR) return false;
  if (count <= 0) return true;
  text_.append(buffer, static_cast<size_t>(count));
  return false;
}

ChildOutcome Child::Finish() {
  close(fd_);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  ChildOutcome outcome;
  outcome.text = std::move(text_);
  outcome.crashed = WIFSIGNALED(status);
  outcome.code = outcome.crashed ? WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

ChildOutcome RunInChild(const std::function<int(std::string& text)>& run) {
  Child child(run, /*processor=*/0);
  while (!child.Read()) {
  }
  return child.Finish();
}

}  // namespace ckv::sim
