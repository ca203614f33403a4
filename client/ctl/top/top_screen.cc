#include "client/ctl/top/top_screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace ckv::ctl {
namespace {

// The other screen of the terminal, without a cursor; and back.
constexpr std::string_view kBegin = "\x1b[?1049h\x1b[?25l";
constexpr std::string_view kEnd = "\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kClearLine = "\x1b[K";
constexpr std::string_view kClearBelow = "\x1b[J";
constexpr char kEndOfInput = 4;  // Ctrl-D
constexpr size_t kRowsUnknown = 24;

}  // namespace

TopScreen::TopScreen(int in_fd, int out_fd) : in_fd_(in_fd), out_fd_(out_fd) {
  tcgetattr(in_fd_, &before_);
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VSUSP] = keys.c_cc[VQUIT] = _POSIX_VDISABLE;
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  tcsetattr(in_fd_, TCSADRAIN, &keys);
  Write(kBegin);
}

TopRoom TopScreen::room() const {
  winsize size = {};
  if (ioctl(out_fd_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
    return {kTerminalColumns, kRowsUnknown};
  return {size.ws_col, size.ws_row};
}

void TopScreen::Draw(std::string_view text) const {
  if (restored_) return;
  std::string bytes(kHome);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    bytes.append(text.substr(0, end)).append(kClearLine);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!text.empty()) bytes += "\n";  // after the last line it would scroll
  }
  Write(bytes.append(kClearBelow));
}

TopScreen::Key TopScreen::Wait(Duration limit) const {
  const Instant deadline = Clock::Real()->Now() + limit;
  for (;;) {
    const Duration left = deadline - Clock::Real()->Now();
    if (left <= Duration(0)) return Key::kNone;
    pollfd in = {in_fd_, POLLIN, 0};
    const auto left_ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    const int ready = poll(&in, 1, static_cast<int>(std::min<int64_t>(left_ms, 1 << 30)));
    if (ready < 0 && errno != EINTR) return Key::kQuit;
    if (ready <= 0) continue;
    char key = 0;
    const ssize_t got = read(in_fd_, &key, 1);
    if (got == 0 || (got < 0 && errno != EINTR)) return Key::kQuit;
    if (got < 0) continue;
    if (key == 'q' || key == 'Q' || key == kEndOfInput) return Key::kQuit;
    if (key == ' ' || key == '\n' || key == '\r') return Key::kLook;
  }
}

void TopScreen::Restore() {
  if (restored_.exchange(true)) return;
  Write(kEnd);
  tcsetattr(in_fd_, TCSADRAIN, &before_);
}

void TopScreen::Write(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = write(out_fd_, bytes.data(), bytes.size());
    if (put < 0 && errno != EINTR) return;  // it is gone, which Wait sees
    if (put > 0) bytes.remove_prefix(static_cast<size_t>(put));
  }
}

}  // namespace ckv::ctl
