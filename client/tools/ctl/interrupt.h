// Runs what a command still does when it is interrupted.

#pragma once

#include <functional>

namespace ckv::ctl {

// While it lives, the first SIGINT or SIGTERM runs `act` on a thread of its own, and then ends the
// process by that signal. A second one ends it at once. A signal that the parent set to be ignored
// stays ignored. If several live, their acts run one after another, the newest first.
class OnInterrupt {
 public:
  explicit OnInterrupt(std::function<void()> act);
  // If the acts run, does not return: the process ends.
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;

 private:
  const std::function<void()> act_;
};

}  // namespace ckv::ctl
