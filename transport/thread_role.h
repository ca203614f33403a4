// A capability that one thread holds: nothing is locked; clang checks the annotations at compile
// time (preset tsa), debug builds check the thread.

#pragma once

#include <cassert>
#include <thread>

#include "absl/base/thread_annotations.h"

namespace ckv {

class ABSL_LOCKABLE ThreadRole {
 public:
  // Claims the role for the calling thread; the previous owner must be done with it, and the hand
  // over must be ordered by something else (a queue, a join).
  void Claim() ABSL_ASSERT_EXCLUSIVE_LOCK() { owner_ = std::this_thread::get_id(); }

  // Crashes in debug builds unless the calling thread claimed the role.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {
    assert(owner_ == std::this_thread::get_id());
  }

 private:
  std::thread::id owner_;
};

}  // namespace ckv
