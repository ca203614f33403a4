// Tells ThreadSanitizer what absl::Mutex orders. Debian's abseil is not instrumented, so without
// this every field guarded by a Mutex looks like a race. Linked into the tests under
// CKV_SANITIZE=thread only; the library's own functions are called, ours only annotate.

#include <dlfcn.h>

#include "absl/synchronization/mutex.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);

// The library evaluates conditions under a lock that it took itself, in the waiting thread or in
// the one that unlocks. Such a race cannot be real, since every evaluation holds the mutex; races
// of the code around it are still reported. The graph of locks that it looks for deadlocks in is
// its own as well, under a spin lock inside it; it moves when a process has many locks.
const char* __tsan_default_suppressions() {
  return "race:absl::debian3::Mutex::Await\n"
         "race:absl::debian3::Mutex::LockSlowLoop\n"
         "race:absl::debian3::Mutex::UnlockSlow\n"
         "race:absl::debian3::synchronization_internal::GraphCycles::\n";
}
}

namespace {

// The library's function of this mangled name: the next one after the executable's own.
template <typename Function>
Function* Library(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

#define CKV_LIBRARY(type, name) \
  static auto* const library = Library<type>("_ZN4absl7debian35Mutex" name)

void Mutex::Lock() {
  CKV_LIBRARY(void(Mutex*), "4LockEv");
  library(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  CKV_LIBRARY(void(Mutex*), "6UnlockEv");
  __tsan_release(this);
  library(this);
}

bool Mutex::TryLock() {
  CKV_LIBRARY(bool(Mutex*), "7TryLockEv");
  const bool locked = library(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  CKV_LIBRARY(void(Mutex*), "10ReaderLockEv");
  library(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  CKV_LIBRARY(void(Mutex*), "12ReaderUnlockEv");
  __tsan_release(this);
  library(this);
}

// Another thread that unlocks evaluates the condition for us: what it reads of ours is released.
void Mutex::Await(const Condition& condition) {
  CKV_LIBRARY(void(Mutex*, const Condition&), "5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  library(this, condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  CKV_LIBRARY(bool(Mutex*, const Condition&, Duration),
              "16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  const bool holds = library(this, condition, timeout);
  __tsan_acquire(this);
  return holds;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  CKV_LIBRARY(bool(Mutex*, const Condition&, Time),
              "17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  const bool holds = library(this, condition, deadline);
  __tsan_acquire(this);
  return holds;
}

void Mutex::LockWhen(const Condition& condition) {
  CKV_LIBRARY(void(Mutex*, const Condition&), "8LockWhenERKNS0_9ConditionE");
  __tsan_release(this);
  library(this, condition);
  __tsan_acquire(this);
}

#undef CKV_LIBRARY

ABSL_NAMESPACE_END
}  // namespace absl
