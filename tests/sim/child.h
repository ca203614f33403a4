// Runs a simulation in a child process, which begins as every other child of this process does: so
// a run depends on its seed alone, and a crash ends one run.

#pragma once

#include <functional>
#include <string>

namespace ckv::sim {

struct ChildOutcome {
  bool crashed = false;  // by a signal, or it ran for too long
  int code = 0;          // its exit code, or the signal
  std::string text;      // what `run` returned, or what was there when it crashed
};

// Runs `run` in a child. Its return value is the child's exit code; `text` is passed back.
ChildOutcome RunInChild(const std::function<int(std::string& text)>& run, int seconds_max = 120);

// Makes this program's addresses the same in each run, by starting it again without randomization.
// Call it first in main. Tables of abseil order their entries by addresses.
void FixAddresses(char** argv);

}  // namespace ckv::sim
