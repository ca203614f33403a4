// What a rest costs two processes that share nothing with ckv: the floor of
// tests/bench/peer_rest.py.
//
//   rest_echo [PROCESSOR]
//
// Each line on stdin is one exchange: this process wakes another with a byte over a socket, the
// other copies the rows of one layer of 16 tokens into shared memory and answers, and this process
// reads them. The answer is a line with its time in nanoseconds. Like a holder, the other process
// sleeps until it is woken; like a requester, this one polls for 50 us and then sleeps. With
// PROCESSOR, the other process runs on that one.

#define _GNU_SOURCE  // sched_setaffinity, and what c_timing.h needs

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/bindings/c_timing.h"

enum { kRowsBytes = 16 * 1152, kPollNs = 50000 };

static void Serve(int socket, const char* processor, char* shared) {
  if (processor != NULL) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(processor), &set);
    Require(sched_setaffinity(0, sizeof set, &set) == 0, "pin");
  }
  char* const rows = malloc(kRowsBytes);
  Require(rows != NULL, "no memory");
  memset(rows, 1, kRowsBytes);
  char byte;
  while (read(socket, &byte, 1) == 1) {
    memcpy(shared, rows, kRowsBytes);
    if (write(socket, &byte, 1) != 1) return;
  }
}

static int64_t Exchange(int socket, const char* shared, char* rows) {
  const int64_t begin = Now();
  char byte = 1;
  Require(write(socket, &byte, 1) == 1, "write");
  ssize_t got = -1;
  while (got != 1 && Now() - begin < kPollNs) got = recv(socket, &byte, 1, MSG_DONTWAIT);
  if (got != 1) Require(recv(socket, &byte, 1, 0) == 1, "read");
  memcpy(rows, shared, kRowsBytes);
  __asm__ volatile("" : : "r"(rows) : "memory");
  return Now() - begin;
}

int main(int argc, char** argv) {
  char* const shared =
      mmap(NULL, kRowsBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Require(shared != MAP_FAILED, "no memory");
  int ends[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  const pid_t other = fork();
  Require(other >= 0, "fork");
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    Serve(ends[1], argc > 1 ? argv[1] : NULL, shared);
    _exit(0);
  }
  close(ends[1]);
  char* const rows = malloc(kRowsBytes);
  Require(rows != NULL, "no memory");
  memset(rows, 0, kRowsBytes);
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    printf("%lld\n", (long long)Exchange(ends[0], shared, rows));
    fflush(stdout);
  }
  return 0;
}
