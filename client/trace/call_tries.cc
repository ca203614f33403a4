#include "client/trace/call_tries.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace ckv {

void CallTries::Fail(const absl::Status& status) {
  // That time is up says nothing of the holders.
  if (stale && !absl::IsDeadlineExceeded(status)) {
    causes.clear();
    stale = false;
  }
  std::string text(status.message());
  std::erase(causes, text);
  if (causes.size() == kCauseCountMax) causes.erase(causes.begin());
  causes.push_back(std::move(text));
}

absl::Status CallTries::Final(const absl::Status& status, Instant now) const {
  if (status.ok()) return status;
  std::string text(status.message());
  for (const std::string& cause : causes) {
    if (cause != status.message()) absl::StrAppendFormat(&text, "; before that: %s", cause);
  }
  if (wait_count > 0) {
    absl::StrAppendFormat(&text, "; waited %.1f s for a holder to return",
                          double((now - wait_begun).count()) / 1e9);
  }
  if (text == status.message()) return status;
  const bool waited = wait_count > 0 && absl::IsDeadlineExceeded(status);
  absl::Status reported(waited ? absl::StatusCode::kUnavailable : status.code(), text);
  status.ForEachPayload([&reported](absl::string_view name, const absl::Cord& payload) {
    reported.SetPayload(name, payload);
  });
  return reported;
}

void CallTries::EndSpan(bool failed, Instant now) {
  if (!span) return;
  span->end = now;
  span->failed = failed;
  if (attempt_count > 1) {
    span->Set("attempts", int64_t{attempt_count});
    span->Set("lost_us", lost().count() / 1000);
  }
  sink->Record(*span);
  span.reset();
}

}  // namespace ckv
