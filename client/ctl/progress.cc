#include "client/ctl/progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/output.h"

namespace ckv::ctl {
namespace {

constexpr uint32_t kBarWidth = 24;

std::string Amount(uint64_t done, uint64_t total, const std::string& unit) {
  if (unit == "B") return FormatBytes(done) + "/" + FormatBytes(total);
  return absl::StrFormat("%d/%d %s", done, total, unit);
}

std::string Rate(double per_s, const std::string& unit) {
  if (unit == "B") return FormatRate(per_s);
  return absl::StrFormat("%.0f %s/s", per_s, unit);
}

}  // namespace

std::string RenderProgress(const ProgressState& state, uint32_t bar_width) {
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

Progress::Progress(Clock* clock, std::ostream* out, bool is_terminal, std::string label,
                   std::string unit, uint64_t total, bool quadratic)
    : clock_(clock), out_(out), is_terminal_(is_terminal), start_(clock->Now()), drawn_(start_) {
  state_.label = std::move(label);
  state_.unit = std::move(unit);
  state_.total = total;
  state_.quadratic = quadratic;
}

Progress::~Progress() {
  absl::MutexLock lock(&mu_);
  if (is_terminal_ || !drawn_whole_) Draw(clock_->Now(), true);
}

void Progress::Advance(uint64_t by) {
  absl::MutexLock lock(&mu_);
  state_.done += by;
  const Instant now = clock_->Now();
  if (now - drawn_ >= (is_terminal_ ? kTerminalPeriod : kPlainPeriod)) Draw(now, false);
}

void Progress::Skip(uint64_t by) {
  absl::MutexLock lock(&mu_);
  state_.total -= std::min(by, state_.total);
  const Instant now = clock_->Now();
  if (now - drawn_ >= (is_terminal_ ? kTerminalPeriod : kPlainPeriod)) Draw(now, false);
}

void Progress::Draw(Instant now, bool last) {
  drawn_ = now;
  drawn_whole_ = state_.done >= state_.total;
  state_.elapsed = now - start_;
  // Back to the line's start, and clear what the last drawing left of it.
  if (is_terminal_) *out_ << "\r\x1b[K";
  *out_ << RenderProgress(state_, is_terminal_ ? kBarWidth : 0);
  if (!is_terminal_ || last) *out_ << "\n";
  out_->flush();
}

}  // namespace ckv::ctl
