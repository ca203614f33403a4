#include "client/tools/ctl/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl {
namespace {

constexpr uint32_t kBarWidth = 24;
constexpr uint32_t kBarColumnsMin = 110;  // the bar takes 27, the widest text beside it some 80
constexpr uint32_t kColumnsDefault = 80;

std::string Amount(uint64_t done, uint64_t total, const std::string& unit) {
  if (unit == "B") return FormatBytes(done) + "/" + FormatBytes(total);
  return absl::StrFormat("%d/%d %s", done, total, unit);
}

std::string Rate(double per_s, const std::string& unit) {
  if (unit == "B") return FormatRate(per_s);
  return absl::StrFormat("%.0f %s/s", per_s, unit);
}

// The whole text, with a bar of that width unless it is 0.
std::string RenderLine(const ProgressState& state, uint32_t bar_width) {
  const double fraction =
      state.total == 0
          ? 1.0
          : std::min(1.0, static_cast<double>(state.done) / static_cast<double>(state.total));
  std::string text;
  if (bar_width > 0) {
    const auto filled = static_cast<uint32_t>(fraction * bar_width);
    text.push_back('[');
    text.append(filled, '#').append(bar_width - filled, '.').append("] ");
  }
  text += absl::StrFormat("%s  %s  %d %%", state.label, Amount(state.done, state.total, state.unit),
                          static_cast<int>(fraction * 100));
  const double seconds = static_cast<double>(state.elapsed.count()) / 1e9;
  if (state.done == 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(state.done) / seconds;
  text.append("  ").append(Rate(rate, state.unit));
  if (state.done >= state.total) return text + "  in " + FormatDuration(state.elapsed);
  const double remaining = 1 / fraction - 1;  // times what was done, if every unit costs alike
  const double left = seconds * (state.quadratic ? remaining * (1 / fraction + 1) : remaining);
  return text + "  " + FormatDuration(Duration(static_cast<int64_t>(left * 1e9))) + " left";
}

}  // namespace

uint32_t TerminalColumns(int fd) {
  if (isatty(fd) != 1) return 0;
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumnsDefault;
  return size.ws_col;
}

std::string RenderProgress(const ProgressState& state, uint32_t columns) {
  if (columns == 0) return RenderLine(state, 0);
  // Some terminals wrap as the last column is filled.
  return RenderLine(state, columns < kBarColumnsMin ? 0 : kBarWidth).substr(0, columns - 1);
}

Progress::Progress(Clock* clock, std::ostream* out, int terminal_fd, std::string label,
                   std::string unit, uint64_t total, bool quadratic)
    : clock_(clock), out_(out), terminal_fd_(terminal_fd), start_(clock->Now()), drawn_(start_) {
  state_.label = std::move(label);
  state_.unit = std::move(unit);
  state_.total = total;
  state_.quadratic = quadratic;
}

Progress::~Progress() {
  absl::MutexLock lock(&mu_);
  if (terminal_fd_ >= 0 || !drawn_whole_) Draw(clock_->Now(), true);
}

void Progress::Advance(uint64_t by) {
  absl::MutexLock lock(&mu_);
  state_.done += by;
  DrawIfDue();
}

void Progress::Skip(uint64_t by) {
  absl::MutexLock lock(&mu_);
  state_.total -= std::min(by, state_.total);
  DrawIfDue();
}

void Progress::DrawIfDue() {
  const Instant now = clock_->Now();
  if (now - drawn_ >= (terminal_fd_ >= 0 ? kTerminalPeriod : kPlainPeriod)) Draw(now, false);
}

void Progress::Draw(Instant now, bool last) {
  drawn_ = now;
  drawn_whole_ = state_.done >= state_.total;
  state_.elapsed = now - start_;
  // Queried each time, because windows change. Erasing after the text removes the rest of a longer
  // one.
  const uint32_t columns = TerminalColumns(terminal_fd_);
  if (columns > 0) *out_ << "\r";
  *out_ << RenderProgress(state_, columns) << (columns > 0 ? "\x1b[K" : "");
  if (columns == 0 || last) *out_ << "\n";
  out_->flush();
}

}  // namespace ckv::ctl
