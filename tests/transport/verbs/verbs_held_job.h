// Holds a verbs fabric's side thread up until it is let go.

#pragma once

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "transport/verbs/verbs_side_thread.h"

namespace ckv::test {

// Lets go at its own end at the latest.
class HeldJob {
 public:
  ~HeldJob() { LetGo(); }
  void LetGo() {
    if (!state_->go.HasBeenNotified()) state_->go.Notify();
  }

 private:
  friend void HoldUp(VerbsSideThread& side, VerbsSourceId source, HeldJob& held);
  // Shared with the side thread, which may wake up after the HeldJob's end.
  struct State {
    absl::Notification begun, go;
  };
  class Job final : public VerbsJob {
   public:
    explicit Job(std::shared_ptr<State> state) : state_(std::move(state)) {}
    ~Job() override {
      state_->begun.Notify();
      state_->go.WaitForNotification();
    }
    void Run() noexcept override {}

   private:
    const std::shared_ptr<State> state_;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Returns once `side` does nothing but wait for `held`.
inline void HoldUp(VerbsSideThread& side, VerbsSourceId source, HeldJob& held) {
  side.Retire(source, std::make_unique<HeldJob::Job>(held.state_));
  held.state_->begun.WaitForNotification();
}

}  // namespace ckv::test
