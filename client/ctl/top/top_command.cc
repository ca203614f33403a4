// ckvctl top: what a fleet does, again and again.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/commands.h"
#include "client/ctl/fleet/fleet_findings.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/output.h"
#include "client/ctl/time_span.h"
#include "client/ctl/top/top_sample.h"
#include "client/ctl/top/top_screen.h"
#include "client/ctl/top/top_text.h"
#include "client/ctl/top/top_view.h"

namespace ckv::ctl {
namespace {

constexpr Duration kIntervalMin = std::chrono::milliseconds(100);
// A member that is silent for longer does not answer, so that the others are seen on time.
constexpr Duration kSilenceMax = std::chrono::seconds(2);

struct TopOptions {
  std::string interval = "2s";
  bool once = false;
};

FleetOptions Impatient(FleetOptions options) {
  options.timeout = std::min(options.timeout, kSilenceMax);
  return options;
}

// A look a line of JSON, or a text that an empty line ends.
absl::Status PrintLooks(const Ctl& ctl, Fleet& fleet, const TopOptions& options) {
  const Duration interval = TimeSpanOf(options.interval);
  TopSample before = TakeSample(fleet, nullptr);
  if (!before.directory_status.ok()) return VerdictOf(before.findings, before.directory_status);
  for (uint64_t count = 1;; ++count) {
    ctl.clock->WaitUntil(before.at + interval);
    TopSample now = TakeSample(fleet, &before);
    const TopView view = MakeTopView(&before, now);
    if (ctl.format == OutputFormat::kJson) {
      *ctl.out << TopJson(view).dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
    } else {
      *ctl.out << TopText(view, {.columns = TableColumns()}) << (options.once ? "" : "\n");
    }
    ctl.out->flush();
    if (options.once || count == ctl.watch_count_max || !ctl.out->good())
      return VerdictOf(now.findings, now.directory_status);
    before = std::move(now);
  }
}

absl::Status ShowLooks(Fleet& fleet, const TopOptions& options) {
  const Duration interval = TimeSpanOf(options.interval);
  std::optional<TopSample> before;
  TopSample now = TakeSample(fleet, nullptr);
  if (!now.directory_status.ok())
    return VerdictOf(now.findings, now.directory_status);  // on a terminal as it is
  TopScreen screen(STDIN_FILENO, STDOUT_FILENO);
  const OnInterrupt on_interrupt([&screen] { screen.Restore(); });
  const std::string hint = absl::StrFormat("every %s, q quits", options.interval);
  for (;;) {
    screen.Draw(TopText(MakeTopView(before ? &*before : nullptr, now), screen.room(), hint));
    const Duration left = now.at + interval - fleet.clock().Now();
    if (screen.Wait(left) == TopScreen::Key::kQuit) return absl::OkStatus();
    before = std::move(now);
    now = TakeSample(fleet, &*before);
  }
}

absl::Status RunTop(const Ctl& ctl, const TopOptions& options) {
  Fleet fleet(Impatient(ctl.fleet), ctl.clock);
  // A terminal that says it is dumb moves no cursor.
  const char* const terminal = std::getenv("TERM");
  const bool dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  const bool shows = ctl.out_is_terminal && !dumb && isatty(STDIN_FILENO) == 1 && !options.once &&
                     ctl.format != OutputFormat::kJson;
  return shows ? ShowLooks(fleet, options) : PrintLooks(ctl, fleet, options);
}

}  // namespace

void AddTopCommand(CLI::App& app, Ctl& ctl) {
  const auto options = std::make_shared<TopOptions>();
  CLI::App* verb = AddVerb(
      app, "top", "Show what the fleet does: members, rates, waits, hottest corpora",
      "  ckvctl top\n  ckvctl top --interval 500ms\n  ckvctl top --once\n"
      "  ckvctl top -o json | jq -c '.holders[] | [.name, .busy, .wait_p99_us]'\n\n"
      "On a terminal it refreshes the view: q ends it, a space refreshes at once. Otherwise it\n"
      "prints a text for each sample, or with -o json a line. Rates and times are since\n"
      "the last sample; --once takes two. A holder's line has kernel time (BUSY), the requests\n"
      "that wait, and the 99th percentiles of the waits and of the kernel. Lines with ! are\n"
      "findings; --once then ends with the exit code of ckvctl health.");
  verb->add_option("--interval", options->interval, "Time from one look to the next, as 2s")
      ->capture_default_str()
      ->check(TimeSpan())
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            return TimeSpanOf(text) >= kIntervalMin ? "" : "'" + text + "' is less than 100ms";
          },
          ""))
      ->type_name("TIME");
  verb->add_flag("--once", options->once, "Print one look, and end");
  verb->callback([&ctl, options] { ctl.run = [&ctl, options] { return RunTop(ctl, *options); }; });
}

}  // namespace ckv::ctl
