// How far a long command has come: a bar on a terminal, a plain line every few seconds elsewhere.

#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/clock.h"

namespace ckv::ctl {

struct ProgressState {
  std::string label;  // "prefill", "put"
  std::string unit;   // "tokens"; "B" is written in KiB, MiB, ...
  uint64_t done = 0;
  uint64_t total = 0;
  Duration elapsed{0};
  // The cost of a unit grows with the units before it, as a prefill's does: what is left is
  // estimated by squares.
  bool quadratic = false;
};

// "prefill  4096/8192 tokens  50 %  312 tokens/s  13.1 s left"; with a bar of `bar_width` columns
// before it unless that is 0.
std::string RenderProgress(const ProgressState& state, uint32_t bar_width);

// Thread-safe. Nothing is drawn by itself: Advance draws if the last drawing is old enough.
class Progress {
 public:
  static constexpr Duration kTerminalPeriod = std::chrono::milliseconds(100);
  static constexpr Duration kPlainPeriod = std::chrono::seconds(3);

  // `clock` and `out` must outlive it.
  Progress(Clock* clock, std::ostream* out, bool is_terminal, std::string label, std::string unit,
           uint64_t total, bool quadratic);
  // Draws the last state and ends its line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Advance(uint64_t by) ABSL_LOCKS_EXCLUDED(mu_);
  // So much of the total turned out to need no work: it counts neither as done, which would promise
  // the rest too soon, nor as due.
  void Skip(uint64_t by) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Draw(Instant now, bool last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  std::ostream* const out_;
  const bool is_terminal_;
  const Instant start_;
  absl::Mutex mu_;
  ProgressState state_ ABSL_GUARDED_BY(mu_);
  Instant drawn_ ABSL_GUARDED_BY(mu_);
  bool drawn_whole_ ABSL_GUARDED_BY(mu_) = false;  // the last drawing showed all done
};

}  // namespace ckv::ctl
