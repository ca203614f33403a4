#include "tests/sim/child.h"

#include <malloc.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "proto/base/status.h"

namespace ckv::sim {

void FixAddresses(char** argv) {
  const int now = personality(0xffffffff);
  if (now == -1 || (now & ADDR_NO_RANDOMIZE) != 0) return;
  if (personality(static_cast<unsigned long>(now | ADDR_NO_RANDOMIZE)) == -1) return;
  execv("/proc/self/exe", argv);
}

ChildOutcome RunInChild(const std::function<int(std::string& text)>& run, int seconds_max) {
  int ends[2];
  CKV_CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  CKV_CHECK(child >= 0);
  if (child == 0) {
    close(ends[0]);
    alarm(static_cast<unsigned>(seconds_max));
    mallopt(M_ARENA_MAX, 1);
    // A turn that passes between threads of one processor wakes no other one.
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof(all), &all) == 0) {
      CPU_ZERO(&one);
      int chosen = static_cast<int>(getpid()) % CPU_COUNT(&all);
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &all) && chosen-- == 0) CPU_SET(cpu, &one);
      }
      sched_setaffinity(0, sizeof(one), &one);
    }
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
  ChildOutcome outcome;
  char buffer[4096];
  while (true) {
    const ssize_t count = read(ends[0], buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    outcome.text.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  outcome.crashed = WIFSIGNALED(status);
  outcome.code = outcome.crashed ? WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

}  // namespace ckv::sim
