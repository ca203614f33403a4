// Goal: a service manager gets what it needs to start, watch, reload and stop a daemon, and gets
// watchdog messages only while every part of the daemon makes progress.
// Method: a socket of the test replaces systemd's; parts are counters, and time is simulated.

#include "server/daemon/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Takes the place of systemd at NOTIFY_SOCKET, and keeps each message.
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path)
      : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~NotifySocket() {
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    close(fd_);
  }
  // The next message, or "" if there is none.
  std::string Next() {
    char text[4096];
    const ssize_t bytes = recv(fd_, text, sizeof(text), 0);
    return bytes < 0 ? "" : std::string(text, static_cast<size_t>(bytes));
  }

 private:
  const int fd_;
};

TEST(ServiceManager, SendsWhatSystemdReads) {
  NotifySocket socket(test::TempPath("notify"));
  setenv("WATCHDOG_USEC", "30000000", 1);
  const ServiceManager manager;
  EXPECT_EQ(manager.watchdog_period(), std::optional<Duration>(seconds(30)));
  manager.Loading("loads: 7\nREADY=1", seconds(30));
  EXPECT_EQ(socket.Next(), "STATUS=loads: 7 READY=1\nEXTEND_TIMEOUT_USEC=30000000")
      << "a newline would begin another assignment";
  manager.Ready("serves");
  EXPECT_EQ(socket.Next(), "READY=1\nSTATUS=serves");
  manager.Reloading(Instant{12'000'000});
  EXPECT_EQ(socket.Next(),
            "RELOADING=1\nMONOTONIC_USEC=12000\nSTATUS=reads its configuration again");
  manager.Status("does not serve");
  EXPECT_EQ(socket.Next(), "STATUS=does not serve");
  manager.Ping();
  EXPECT_EQ(socket.Next(), "WATCHDOG=1");
  manager.Stopping("drains", seconds(15));
  EXPECT_EQ(socket.Next(), "STOPPING=1\nSTATUS=drains\nEXTEND_TIMEOUT_USEC=15000000");
  EXPECT_EQ(socket.Next(), "");
}

TEST(ServiceManager, SendsNothingWithoutAManager) {
  const ServiceManager manager;
  EXPECT_EQ(manager.watchdog_period(), std::nullopt);
  manager.Ready("serves");
  manager.Ping();
}

class HeartTest : public testing::Test {
 protected:
  HeartTest()
      : watchdog_({{"lively", nullptr, [this] { return lively_; }},
                   {"poked", [this] { ++poke_count_; }, [this] { return poked_; }}},
                  seconds(40), now_) {}
  bool DueAfter(Duration time) { return watchdog_.Due(now_ = now_ + time); }
  void MoveAll() { ++lively_, ++poked_; }

  Instant now_{1'000'000'000};
  uint64_t lively_ = 5, poked_ = 0, poke_count_ = 0;
  Watchdog watchdog_;
};

TEST_F(HeartTest, BeatsFourTimesAPeriodWhileAllMove) {
  EXPECT_EQ(poke_count_, 1u);
  MoveAll();
  EXPECT_FALSE(DueAfter(seconds(9))) << "too soon";
  EXPECT_TRUE(DueAfter(seconds(1))) << "that it moved before is remembered";
  EXPECT_EQ(poke_count_, 2u);
  EXPECT_FALSE(DueAfter(seconds(10))) << "nothing has moved since the beat";
  MoveAll();
  EXPECT_TRUE(DueAfter(milliseconds(100)));
}

TEST_F(HeartTest, OneStalledPartEndsTheBeats) {
  MoveAll();
  EXPECT_TRUE(DueAfter(seconds(10)));
  for (int i = 0; i < 19; ++i) {
    ++lively_;
    EXPECT_FALSE(DueAfter(seconds(1)));
    EXPECT_EQ(watchdog_.StalledPart(now_), "");
  }
  EXPECT_FALSE(DueAfter(seconds(1)));
  EXPECT_EQ(watchdog_.StalledPart(now_), "poked");
  EXPECT_EQ(watchdog_.StalledPart(now_ + seconds(1)), "") << "told once";
  ++poked_;
  EXPECT_TRUE(DueAfter(seconds(1))) << "it goes on if the part does";
}

}  // namespace
}  // namespace ckv
