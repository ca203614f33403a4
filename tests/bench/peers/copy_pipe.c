// What two copies by two processors cost without any protocol: the floor of a fetch on one host in
// tests/bench/peer_transfers.py.
//
//   copy_pipe [PROCESSOR]
//
// A line "BYTES COUNT" on stdin is answered by the nanoseconds of COUNT transfers. For each,
// another process copies BYTES of its memory to slots of shared memory, a piece at a time, and this
// one copies them from there to its own. Pieces, slots and their distance are those of ckv's lanes.
// Both processes poll. With PROCESSOR, the other process runs on that one.

#define _GNU_SOURCE  // sched_setaffinity, and what c_timing.h needs

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/bench/bindings/c_timing.h"

enum { kPieceBytes = 7 * 32 * 1152, kSlotBytes = 576 << 10, kHeadBytes = 64, kWindow = 8 };
static const size_t kMemoryBytes = (size_t)64 << 20;

struct Shared {
  _Alignas(64) atomic_long wanted;  // bytes of the next transfer; 0 once it is under way
  _Alignas(64) atomic_long filled;  // pieces of the transfer
  _Alignas(64) atomic_long taken;
  _Alignas(4096) char slots[kWindow][kSlotBytes];
};

static char* Memory(int value) {
  char* const memory = aligned_alloc(2 << 20, kMemoryBytes);
  Require(memory != NULL, "no memory");
  madvise(memory, kMemoryBytes, MADV_HUGEPAGE);
  memset(memory, value, kMemoryBytes);
  return memory;
}

static size_t PieceAt(long piece, size_t bytes) {
  const size_t left = bytes - (size_t)piece * kPieceBytes;
  return left < kPieceBytes ? left : kPieceBytes;
}

static void Serve(struct Shared* shared, const char* processor) {
  if (processor != NULL) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(processor), &set);
    Require(sched_setaffinity(0, sizeof set, &set) == 0, "pin");
  }
  const char* const source = Memory(1);
  while (1) {
    const size_t bytes = (size_t)atomic_exchange(&shared->wanted, 0);
    for (long piece = 0; (size_t)piece * kPieceBytes < bytes; ++piece) {
      while (piece - atomic_load_explicit(&shared->taken, memory_order_acquire) >= kWindow)
        continue;
      memcpy(shared->slots[piece % kWindow] + kHeadBytes, source + piece * kPieceBytes,
             PieceAt(piece, bytes));
      atomic_store_explicit(&shared->filled, piece + 1, memory_order_release);
    }
  }
}

static int64_t Transfer(struct Shared* shared, size_t bytes, char* to) {
  const int64_t begin = Now();
  atomic_store(&shared->filled, 0);
  atomic_store(&shared->taken, 0);
  atomic_store(&shared->wanted, (long)bytes);
  for (long piece = 0; (size_t)piece * kPieceBytes < bytes; ++piece) {
    while (atomic_load_explicit(&shared->filled, memory_order_acquire) <= piece) continue;
    memcpy(to + piece * kPieceBytes, shared->slots[piece % kWindow] + kHeadBytes,
           PieceAt(piece, bytes));
    atomic_store_explicit(&shared->taken, piece + 1, memory_order_release);
  }
  return Now() - begin;
}

int main(int argc, char** argv) {
  struct Shared* const shared = mmap(NULL, sizeof(struct Shared), PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  Require(shared != MAP_FAILED, "no memory");
  const pid_t other = fork();
  Require(other >= 0, "fork");
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Serve(shared, argc > 1 ? argv[1] : NULL);
  }
  char* const memory = Memory(0);
  unsigned long bytes, count;
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    Require(sscanf(line, "%lu %lu", &bytes, &count) == 2 && bytes <= kMemoryBytes, line);
    // The other process polls without end, so it runs only when it is its turn.
    kill(other, SIGCONT);
    for (unsigned long i = 0; i < count; ++i)
      printf(i == 0 ? "%lld" : " %lld", (long long)Transfer(shared, bytes, memory));
    kill(other, SIGSTOP);
    printf("\n");
    fflush(stdout);
  }
  return 0;
}
