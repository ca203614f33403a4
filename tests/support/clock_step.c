/* A wall clock that a test may set: LD_PRELOAD it into a program, which then sees CLOCK_REALTIME
 * ahead by the time that a file contains. The machine's own clock stays as it is.
 *
 * CKV_CLOCK_FILE names a file of two int64: nanoseconds that the clock is ahead, which the test
 * writes, and the number of waits for a point of the wall clock, which this counts. The kernel ends
 * these waits by the clock as it is then, not as it was when they began; so does this. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* How often a wait checks whether the clock was set. */
static const int64_t kLookNs = 20000000;
static const int64_t kSecondNs = 1000000000;

struct shared {
  int64_t ahead_ns;
  int64_t wall_waits;
};
static struct shared* g_shared;
static int (*g_clock_gettime)(clockid_t, struct timespec*);
static long (*g_syscall)(long, ...);

__attribute__((constructor)) static void open_shared(void) {
  g_clock_gettime = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  g_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  const char* name = getenv("CKV_CLOCK_FILE");
  const int fd = name == NULL ? -1 : open(name, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* mapped = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped != MAP_FAILED) g_shared = mapped;
}

static int64_t ahead(void) {
  return g_shared == NULL ? 0 : __atomic_load_n(&g_shared->ahead_ns, __ATOMIC_RELAXED);
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  if (g_clock_gettime == NULL) open_shared();
  const int result = g_clock_gettime(clock, time);
  if (result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
  const int64_t ns = time->tv_sec * kSecondNs + time->tv_nsec + ahead();
  time->tv_sec = ns / kSecondNs;
  time->tv_nsec = ns % kSecondNs;
  return 0;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  struct timespec time;
  const int result = clock_gettime(CLOCK_REALTIME, &time);
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return result;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

/* A futex wait until `end` of the wall clock. */
static long wait_by_the_wall(int* word, long operation, long value, const struct timespec* end,
                             long bits) {
  __atomic_fetch_add(&g_shared->wall_waits, 1, __ATOMIC_RELAXED);
  while (1) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t left = (end->tv_sec - now.tv_sec) * kSecondNs + end->tv_nsec - now.tv_nsec;
    if (left < 0) left = 0;
    struct timespec until;
    g_clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_sec * kSecondNs + until.tv_nsec + (left < kLookNs ? left : kLookNs);
    until.tv_sec = ns / kSecondNs;
    until.tv_nsec = ns % kSecondNs;
    const long result = g_syscall(SYS_futex, word, operation & ~(long)FUTEX_CLOCK_REALTIME, value,
                                  &until, NULL, bits);
    if (result == 0 || errno != ETIMEDOUT || left <= kLookNs) return result;
  }
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  if (g_syscall == NULL) open_shared();
  const long command = a[1] & ~(long)(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
  if (number == SYS_futex && command == FUTEX_WAIT_BITSET && (a[1] & FUTEX_CLOCK_REALTIME) != 0 &&
      a[3] != 0 && g_shared != NULL)
    return wait_by_the_wall((int*)a[0], a[1], a[2], (const struct timespec*)a[3], a[5]);
  return g_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
