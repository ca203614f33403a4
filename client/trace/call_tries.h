// The story of one call: its attempts, why they failed, and how long that took.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"

namespace ckv {

// Belongs to one call, so to one thread at a time. A call that succeeds at once writes three fields
// of it and allocates nothing.
struct CallTries {
  // The most failures that an error tells beside the last one. Each has its holder's name.
  static constexpr size_t kCauseCountMax = 4;

  uint32_t attempt_count = 0;  // attends that were begun
  Instant begun;               // the first of them
  Instant attempt_begun;       // the last of them
  int retry_count = 0;         // retries that overloaded holders asked for

  // The wait for a holder that comes back (Attempts).
  uint32_t wait_count = 0;
  Duration pause{0};                // before the next attempt
  Instant wait_begun;               // when all holders had failed for the first time
  Instant wait_end;                 // when it gives up
  uint64_t seen_changes = 0;        // DirectoryView::changes when that was known
  bool may_mend = false;            // a failure since the last wait is one that passes by itself
  bool was_kept = false;            // the view kept the call's corpora when the wait began
  bool waits = false;               // it waits for a holder now
  bool may_ask = true;              // its thread may wait for the directory
  bool stale = false;               // `causes` are of the time before the last wait
  std::vector<std::string> causes;  // distinct texts, the latest last

  // The span of the whole call, if it is sampled (client/trace/call_spans.h).
  SpanSink* sink = nullptr;
  std::optional<Span> span;

  // Call when an attend begins.
  void Attempt(Instant now) {
    if (begun == Instant()) begun = now;
    attempt_begun = now;
    ++attempt_count;
  }
  // Call if the attempt was only left to a thread that may wait. It has not failed, so the time
  // until that thread begins is not lost.
  void Leave() {
    if (--attempt_count == 0) begun = Instant();
  }
  // Returns the time of the attempts before the last one, with the waits between them.
  Duration lost() const { return attempt_begun - begun; }

  // Call when an attempt failed.
  void Fail(const absl::Status& status);
  // Returns the error of a call that ends with `status`: it names the other causes, and how long
  // the call waited. A call that waited for a holder until its time was up ends as UNAVAILABLE.
  absl::Status Final(const absl::Status& status, Instant now) const;
  // Ends the span of the call, if there is one.
  void EndSpan(bool failed, Instant now);
};

}  // namespace ckv
