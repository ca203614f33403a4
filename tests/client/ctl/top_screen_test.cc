// Goal: top takes a terminal and gives it back unchanged. Method: a pseudo-terminal.

#include "client/ctl/top/top_screen.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace ckv::ctl {
namespace {

using Key = TopScreen::Key;

// Limits a wait that must not time out.
constexpr Duration kLong = std::chrono::seconds(60);

struct TopScreenTest : testing::Test {
  TopScreenTest() {
    const winsize size = {.ws_row = 30, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(openpty(&master, &terminal, nullptr, nullptr, &size), 0);
    EXPECT_EQ(tcgetattr(terminal, &before), 0);
  }
  ~TopScreenTest() override {
    close(master);
    close(terminal);
  }
  // Returns all that was written until now.
  std::string Shown() const {
    std::string shown(1 << 16, '\0');
    const ssize_t got = read(master, shown.data(), shown.size());
    shown.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return shown;
  }
  void Press(std::string_view keys) const {
    EXPECT_EQ(write(master, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  termios Now() const {
    termios now = {};
    EXPECT_EQ(tcgetattr(terminal, &now), 0);
    return now;
  }

  int master = -1, terminal = -1;
  termios before = {};
};

TEST_F(TopScreenTest, RestoresTheTerminal) {
  {
    TopScreen screen(terminal, terminal);
    EXPECT_EQ(Now().c_lflag & (ICANON | ECHO), 0u);
    EXPECT_NE(Now().c_lflag & ISIG, 0u) << "Ctrl-C stays a signal";
    EXPECT_EQ(Shown(), "\x1b[?1049h\x1b[?25l");
    screen.Restore();
    EXPECT_EQ(Shown(), "\x1b[?25h\x1b[?1049l");
    screen.Draw("late\n");
  }
  const termios after = Now();
  EXPECT_EQ(after.c_lflag, before.c_lflag);
  EXPECT_EQ(std::memcmp(after.c_cc, before.c_cc, sizeof(before.c_cc)), 0);
  Press("x");  // it echoes, and nothing else has arrived
  EXPECT_EQ(Shown(), "x");
}

TEST_F(TopScreenTest, ATextReplacesThePreviousOne) {
  TopScreen screen(terminal, terminal);
  (void)Shown();
  screen.Draw("a\nb\n");
  EXPECT_EQ(Shown(), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
}

TEST_F(TopScreenTest, ReadsItsCurrentSize) {
  TopScreen screen(terminal, terminal);
  EXPECT_EQ(screen.room().columns, 100u);
  EXPECT_EQ(screen.room().rows, 30u);
  const winsize none = {};
  ASSERT_EQ(ioctl(terminal, TIOCSWINSZ, &none), 0);
  EXPECT_EQ(screen.room().columns, 80u);
  EXPECT_EQ(screen.room().rows, 24u);
}

TEST_F(TopScreenTest, ReadsKeys) {
  TopScreen screen(terminal, terminal);
  Press("xyz q");
  EXPECT_EQ(screen.Wait(kLong), Key::kLook);  // the space
  EXPECT_EQ(screen.Wait(kLong), Key::kQuit);
  Press("\n\x04");
  EXPECT_EQ(screen.Wait(kLong), Key::kLook);
  EXPECT_EQ(screen.Wait(kLong), Key::kQuit);
  EXPECT_EQ(screen.Wait(std::chrono::milliseconds(1)), Key::kNone);
  EXPECT_EQ(screen.Wait(Duration(0)), Key::kNone);
}

TEST(TopScreen, EndsWhenTheTerminalIsGone) {
  int master = -1, terminal = -1;
  ASSERT_EQ(openpty(&master, &terminal, nullptr, nullptr, nullptr), 0);
  TopScreen screen(terminal, terminal);
  close(master);
  EXPECT_EQ(screen.Wait(kLong), Key::kQuit);
  close(terminal);
}

}  // namespace
}  // namespace ckv::ctl
