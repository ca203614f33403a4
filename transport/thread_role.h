// A capability that one thread holds. Nothing is locked: clang checks the annotations at compile
// time (preset tsa), and debug builds check the thread.

#pragma once

#include <cassert>
#include <thread>

#include "absl/base/thread_annotations.h"

namespace ckv {

class ABSL_LOCKABLE ThreadRole {
 public:
  // Claims the role for the calling thread. The previous owner must be done with it, and something
  // else (a queue, a join) must order the hand-over.
  void Claim() ABSL_ASSERT_EXCLUSIVE_LOCK() { owner_ = std::this_thread::get_id(); }

  // Crashes in debug builds (CKV_CHECK_THREADS) unless the calling thread claimed the role. Release
  // builds do nothing, so the hot path may call it.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {
#ifdef CKV_CHECK_THREADS
    assert(owner_ == std::this_thread::get_id());
#endif
  }

  // For an object that belongs to the thread that uses it first. Debug builds claim the role for
  // the first caller, and crash if another thread calls. Release builds do nothing.
  void ClaimOrAssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {
#ifdef CKV_CHECK_THREADS
    if (owner_ == std::thread::id()) owner_ = std::this_thread::get_id();
    AssertHeld();
#endif
  }

 private:
  mutable std::thread::id owner_;
};

}  // namespace ckv
