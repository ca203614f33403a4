#include "proto/base/time_span.h"

#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"

namespace ckv {

absl::StatusOr<Duration> ParseTimeSpan(std::string_view text) {
  absl::Duration span;
  if (absl::ParseDuration(
          absl::StrReplaceAll(absl::string_view(text.data(), text.size()), {{"min", "m"}}),
          &span) &&
      span >= absl::ZeroDuration() && span <= absl::FromChrono(kTimeSpanMax)) {
    return absl::ToChronoNanoseconds(span);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "'%s' is no length of time: like 250ms, 5s, 30m or 1h30m, at most 8760h", text));
}

}  // namespace ckv
