// The history of one call: its attempts, why they failed, and how long that took.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"

namespace ckv {

// Belongs to one call, so to one thread at a time. A call that succeeds at the first attempt writes
// three of its fields and allocates nothing.
struct CallTries {
  // The most failures that an error reports in addition to the last one. Each names its holder.
  static constexpr size_t kCauseCountMax = 4;

  uint32_t attempt_count = 0;  // attends that have begun
  Instant begun;               // begin of the first attempt
  Instant attempt_begun;       // begin of the last attempt
  int retry_count = 0;         // retries that overloaded holders requested

  // The wait for a holder to return (Attempts).
  uint32_t wait_count = 0;
  Duration pause{0};                // before the next attempt
  Instant wait_begun;               // when all holders had failed for the first time
  Instant wait_end;                 // when the call gives up
  uint64_t seen_changes = 0;        // DirectoryView::changes at the last check
  bool may_mend = false;            // whether a failure since the last wait may pass by itself
  bool was_kept = false;            // whether the view kept the call's corpora at wait_begun
  bool waits = false;               // whether the call is waiting for a holder
  bool may_query = true;            // whether its thread may wait for the directory
  bool stale = false;               // whether `causes` are from before the last wait
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
  // Call if the attempt was only handed to a thread that may wait. It has not failed, so the time
  // until that thread begins is not lost.
  void Leave() {
    if (--attempt_count == 0) begun = Instant();
  }
  // Returns the time from the first attempt to the begin of the last one, waits included.
  Duration lost() const { return attempt_begun - begun; }

  // Call when an attempt failed.
  void Fail(const absl::Status& status);
  // Returns the error of a call that ends with `status`. It names the other causes, and how long
  // the call waited. A call that waited for a holder until its deadline ends as UNAVAILABLE.
  absl::Status Final(const absl::Status& status, Instant now) const;
  // Ends the span of the call, if there is one.
  void EndSpan(bool failed, Instant now);
};

}  // namespace ckv
