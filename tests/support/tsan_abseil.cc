// Shows ThreadSanitizer what absl::Mutex and the count of an absl::Status order. Debian's abseil is
// not instrumented, so without this every field guarded by a Mutex looks like a race, and so does
// the end of a Status that threads share. Linked into the tests under CKV_SANITIZE=thread only. The
// functions here only annotate, and call the library's own.

#include <dlfcn.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

// The library's function of this mangled name: the next one after the executable's own.
template <typename Function>
Function* Library(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// ThreadSanitizer ignores what happens inside the library, which evaluates conditions under a lock
// that it took itself, in the waiting thread or in the one that unlocks, and keeps its own data
// under a spin lock. Every evaluation holds the mutex, so what a condition reads under it cannot
// race; one that read something else would not be noticed. Races of the code around it are still
// reported. Suppressions are not enough: they look for a stack that is often lost by then.
struct InLibrary {
  InLibrary() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~InLibrary() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

template <typename Function, typename... Arguments>
auto Call(Function* library, Arguments&&... arguments) {
  const InLibrary scope;
  return library(std::forward<Arguments>(arguments)...);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

#define CKV_LIBRARY(type, name) \
  static auto* const library = Library<type>("_ZN4absl7debian35Mutex" name)

void Mutex::Lock() {
  CKV_LIBRARY(void(Mutex*), "4LockEv");
  Call(library, this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  CKV_LIBRARY(void(Mutex*), "6UnlockEv");
  __tsan_release(this);
  Call(library, this);
}

bool Mutex::TryLock() {
  CKV_LIBRARY(bool(Mutex*), "7TryLockEv");
  const bool locked = Call(library, this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  CKV_LIBRARY(void(Mutex*), "10ReaderLockEv");
  Call(library, this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  CKV_LIBRARY(void(Mutex*), "12ReaderUnlockEv");
  __tsan_release(this);
  Call(library, this);
}

// Another thread that unlocks may evaluate our condition, so what it reads of ours is released.
void Mutex::Await(const Condition& condition) {
  CKV_LIBRARY(void(Mutex*, const Condition&), "5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  Call(library, this, condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  CKV_LIBRARY(bool(Mutex*, const Condition&, Duration),
              "16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  const bool holds = Call(library, this, condition, timeout);
  __tsan_acquire(this);
  return holds;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  CKV_LIBRARY(bool(Mutex*, const Condition&, Time),
              "17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  const bool holds = Call(library, this, condition, deadline);
  __tsan_acquire(this);
  return holds;
}

void Mutex::LockWhen(const Condition& condition) {
  CKV_LIBRARY(void(Mutex*, const Condition&), "8LockWhenERKNS0_9ConditionE");
  __tsan_release(this);
  Call(library, this, condition);
  __tsan_acquire(this);
}

#undef CKV_LIBRARY

// The count is incremented in our code, which is instrumented, and decremented here, which is not.
// The thread that frees it last would seem to race with one that copied it.
void Status::UnrefNonInlined(uintptr_t rep) {
  static auto* const library =
      Library<void(uintptr_t)>("_ZN4absl7debian36Status15UnrefNonInlinedEm");
  Call(library, rep);
}

ABSL_NAMESPACE_END
}  // namespace absl
