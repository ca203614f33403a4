// Shows the progress of a long command: a bar on a terminal, a plain line every few seconds
// elsewhere.

#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"

namespace ckv::ctl {

struct ProgressState {
  std::string label;  // "prefill", "put"
  std::string unit;   // "tokens"; "B" is shown as KiB, MiB, ...
  uint64_t done = 0;
  uint64_t total = 0;
  Duration elapsed{0};
  // The cost of a unit grows with the number of units before it, as in a prefill: the remaining
  // time is estimated quadratically.
  bool quadratic = false;
};

// Returns the columns of the terminal `fd`; 80 if unknown, 0 if `fd` is not a terminal.
uint32_t TerminalColumns(int fd);

// Returns "prefill  4096/8192 tokens  50 %  312 tokens/s  13.1 s left". On a terminal the text is
// cut to one line, and a bar precedes it if there is room. If `columns` is 0, returns text for a
// log.
std::string RenderProgress(const ProgressState& state, uint32_t columns);

// Thread-safe. There is no timer: Advance draws if the last drawing is old enough.
class Progress {
 public:
  static constexpr Duration kTerminalPeriod = std::chrono::milliseconds(100);
  static constexpr Duration kPlainPeriod = std::chrono::seconds(3);

  // `clock` and `out` must outlive the object. `terminal_fd` is the terminal that `out` writes to,
  // or -1 if that is not a terminal.
  Progress(Clock* clock, std::ostream* out, int terminal_fd, std::string label, std::string unit,
           uint64_t total, bool quadratic);
  // Draws the last state and ends the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Advance(uint64_t by) ABSL_LOCKS_EXCLUDED(mu_);
  // Subtracts `by` units that need no work from the total. They do not count as done, which would
  // make the estimate for the rest too short.
  void Skip(uint64_t by) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void DrawIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Draw(Instant now, bool last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  std::ostream* const out_;
  const int terminal_fd_;
  const Instant start_;
  absl::Mutex mu_;
  ProgressState state_ ABSL_GUARDED_BY(mu_);
  Instant drawn_ ABSL_GUARDED_BY(mu_);
  bool drawn_whole_ ABSL_GUARDED_BY(mu_) = false;  // the last drawing showed all done
};

}  // namespace ckv::ctl
