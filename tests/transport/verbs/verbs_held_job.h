// Holds a verbs fabric's side thread up until it is let go.

#pragma once

#include <memory>

#include "absl/synchronization/notification.h"
#include "transport/verbs/verbs_side_thread.h"

namespace ckv::test {

// Outlives the thread that it holds up; lets go at its own end.
class HeldJob {
 public:
  ~HeldJob() { LetGo(); }
  void LetGo() {
    if (!go_.HasBeenNotified()) go_.Notify();
  }

 private:
  friend void HoldUp(VerbsSideThread& side, VerbsSourceId source, HeldJob& held);
  class Job final : public VerbsJob {
   public:
    explicit Job(HeldJob* held) : held_(held) {}
    ~Job() override {
      held_->begun_.Notify();
      held_->go_.WaitForNotification();
    }
    void Run() noexcept override {}

   private:
    HeldJob* const held_;
  };

  absl::Notification begun_, go_;
};

// Returns once `side` does nothing but wait for `held`.
inline void HoldUp(VerbsSideThread& side, VerbsSourceId source, HeldJob& held) {
  side.Retire(source, std::make_unique<HeldJob::Job>(&held));
  held.begun_.WaitForNotification();
}

}  // namespace ckv::test
