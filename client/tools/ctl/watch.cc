#include "client/tools/ctl/watch.h"

#include <string>

#include "client/tools/ctl/time_span.h"

namespace ckv::ctl {
namespace {

constexpr Duration kWatchMin = std::chrono::milliseconds(100);
// Puts the cursor into the first column of the first line, and clears the screen.
constexpr char kClearScreen[] = "\x1b[H\x1b[2J";

}  // namespace

void AddWatch(CLI::App& verb, Ctl& ctl) {
  verb.add_option_function<std::string>(
          "--watch", [&ctl](const std::string& text) { ctl.watch = TimeSpanOf(text); },
          "Show it again each time this has passed, as 2s, until interrupted")
      ->check(TimeSpan())
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            return TimeSpanOf(text) >= kWatchMin ? "" : "'" + text + "' is less than 100ms";
          },
          ""))
      ->type_name("TIME");
}

absl::Status RunWatched(const Ctl& ctl, const std::function<void(const absl::Status&)>& report) {
  for (uint64_t count = 1;; ++count) {
    const Instant begin = ctl.clock->Now();
    if (ctl.out_is_terminal) *ctl.out << kClearScreen;
    absl::Status status = ctl.run();
    ctl.out->flush();
    if (count == ctl.watch_count_max || !ctl.out->good()) return status;
    if (!status.ok()) report(status);
    ctl.clock->WaitUntil(begin + ctl.watch);
  }
}

}  // namespace ckv::ctl
