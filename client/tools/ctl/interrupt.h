// Runs what a command still does when it is interrupted.

#pragma once

#include <csignal>
#include <functional>
#include <thread>

namespace ckv::ctl {

// While it lives, the first SIGINT or SIGTERM runs `act` on a thread of its own, and then ends the
// process by that signal. A second one ends it at once. A signal that the parent set to be ignored
// stays ignored. At most one lives at a time.
class OnInterrupt {
 public:
  explicit OnInterrupt(std::function<void()> act);
  // If `act` runs, does not return: the process ends.
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;

 private:
  void Watch() const;

  const std::function<void()> act_;
  struct sigaction old_int_ = {}, old_term_ = {};
  std::thread watcher_;
};

}  // namespace ckv::ctl
