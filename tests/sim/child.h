// Runs a simulation in a child process, which begins as every other child of this process does: so
// a run depends on its seed alone, and a crash ends one run.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

namespace ckv::sim {

struct ChildOutcome {
  bool crashed = false;  // by a signal, or it ran for too long
  int code = 0;          // its exit code, or the signal
  std::string text;      // what `run` returned, or what was there when it crashed
};

// One child that runs. Used by one thread.
class Child {
 public:
  // Starts `run` in a child, on the processor of this number modulo their count. Its return value
  // is the child's exit code; `text` is passed back.
  Child(const std::function<int(std::string& text)>& run, uint32_t processor,
        unsigned seconds_max = 120);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  // Readable when Read has something to do.
  int fd() const { return fd_; }
  // Takes what the child wrote. Returns true once it wrote all.
  bool Read();
  // Waits for its end. Call it once.
  ChildOutcome Finish();

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  std::string text_;
};

// Runs `run` in a child and waits for its end.
ChildOutcome RunInChild(const std::function<int(std::string& text)>& run);

// Makes this program's addresses the same in each run, by starting it again without randomization.
// Call it first in main. Tables of abseil order their entries by addresses.
void FixAddresses(char** argv);

}  // namespace ckv::sim
