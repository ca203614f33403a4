#include "client/ctl/time_span.h"

#include "absl/time/time.h"

namespace ckv::ctl {

CLI::Validator TimeSpan() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        absl::Duration span;
        if (absl::ParseDuration(text, &span) && span >= absl::ZeroDuration() &&
            span <= absl::FromChrono(kTimeSpanMax)) {
          return "";
        }
        return "'" + text + "' is no length of time: like 250ms, 30m or 1h30m, at most 8760h";
      },
      "");
}

Duration ParseTimeSpan(const std::string& text) {
  absl::Duration span;
  if (!absl::ParseDuration(text, &span)) return Duration(0);
  return absl::ToChronoNanoseconds(span);
}

}  // namespace ckv::ctl
