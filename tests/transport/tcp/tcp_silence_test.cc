// Goal: a peer whose host falls silent, without closing, is found within 3 s, idle or not, at
// either end.
// Method: two network namespaces joined by a pair of virtual Ethernet devices. A host vanishes when
// the other one's frames to it carry a wrong hardware address: nothing is refused, the link stays
// up, packets are just lost. What is timed is the kernel's own timers, so the test waits for them,
// on the lanes' event descriptors.

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"
#include "transport/socket.h"
#include "transport/tcp/silence_watch.h"

namespace ckv {
namespace {

using test::LanePair;

constexpr Duration kFoundMax = std::chrono::seconds(3);
static_assert(std::chrono::milliseconds(SilenceWatch::kSilentMsMax) + SilenceWatch::kLookInterval <
              kFoundMax);
// More than the buffers of both kernels take: the sender has some of it queued for as long as the
// peer does not read.
constexpr uint32_t kOverfullBytes = 48u << 20;
constexpr LaneShape kShape = {4, 64, kOverfullBytes};

UniqueFd CurrentNamespace() {
  return UniqueFd(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
}

// The hosts that receive nothing: packets to them are lost.
enum class Deaf { kHolder, kRequester, kBoth };

class TcpSilence : public testing::Test {
 protected:
  void SetUp() override {
    home_ = CurrentNamespace();
    if (std::system("ip -V > /dev/null 2>&1") != 0) {
      GTEST_SKIP() << "no ip command here; to run it: deploy/install-packages.sh tests";
    }
    if (unshare(CLONE_NEWNET) != 0) {
      GTEST_SKIP() << "may not make network namespaces: " << std::strerror(errno)
                   << "; to run it: the same as root";
    }
    holder_side_ = CurrentNamespace();
    ASSERT_EQ(unshare(CLONE_NEWNET), 0);
    requester_side_ = CurrentNamespace();
    ASSERT_NO_FATAL_FAILURE(Join());
    Within(holder_side_, [&] {
      ListenOptions options;
      options.tcp_address = "10.77.0.1:0";
      auto listener = fabric_->Listen(options);
      ASSERT_TRUE(listener.ok()) << listener.status();
      listener_ = *std::move(listener);
    });
  }
  void TearDown() override {
    if (home_.valid()) (void)setns(home_.get(), CLONE_NEWNET);
  }

  static void Within(const UniqueFd& side, const std::function<void()>& work) {
    ASSERT_EQ(setns(side.get(), CLONE_NEWNET), 0)
        << std::strerror(errno) << "; to run it: the same as root";
    work();
  }
  static void Ip(const std::string& arguments) {
    ASSERT_EQ(std::system(("ip " + arguments).c_str()), 0) << "ip " << arguments;
  }

  void Join() {
    // The command inherits this descriptor of the namespace to which the pair's other end is moved.
    const UniqueFd target(fcntl(requester_side_.get(), F_DUPFD, 0));
    Within(holder_side_, [&] {
      Ip("link add here type veth peer name there");
      Ip(absl::StrFormat("link set there netns /proc/self/fd/%d", target.get()));
      Ip("addr add 10.77.0.1/24 dev here");
      Ip("link set here up");
    });
    Within(requester_side_, [&] {
      Ip("addr add 10.77.0.2/24 dev there");
      Ip("link set there up");
    });
  }

  LanePair Make() {
    LanePair pair;
    Within(requester_side_, [&] { pair = test::MakeLane(*fabric_, *listener_, kShape); });
    return pair;
  }

  void Silence(Deaf who) {
    constexpr const char* kNowhere = "lladdr 02:00:00:00:77:99 nud permanent";
    if (who != Deaf::kRequester) {
      Within(requester_side_,
             [&] { Ip(absl::StrFormat("neigh replace 10.77.0.1 dev there %s", kNowhere)); });
    }
    if (who != Deaf::kHolder) {
      Within(holder_side_,
             [&] { Ip(absl::StrFormat("neigh replace 10.77.0.2 dev here %s", kNowhere)); });
    }
    silent_since_ = Clock::Real()->Now();
  }

  void EndSilence() {
    Within(requester_side_, [] { Ip("neigh del 10.77.0.1 dev there"); });
    Within(holder_side_, [] { Ip("neigh del 10.77.0.2 dev here"); });
  }

  // Sleeps on each end in a thread of its own until it is down, within the limit.
  void ExpectFound(std::vector<std::pair<std::string, LanePair>> lanes) {
    std::vector<std::thread> threads;
    for (auto& lane : lanes) {
      if (lane.second.serve) {
        threads.emplace_back(
            [&lane, this] { ExpectDown<Arrival>(lane.first + ", holder", *lane.second.serve); });
      }
      if (lane.second.request) {
        threads.emplace_back([&lane, this] {
          ExpectDown<Completion>(lane.first + ", requester", *lane.second.request);
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
  }
  template <typename Message, typename LaneType>
  void ExpectDown(const std::string& who, LaneType& lane) {
    const Instant limit = silent_since_ + kFoundMax;
    Message message;
    while (lane.status().ok() && Clock::Real()->Now() < limit) {
      if (lane.Poll({&message, 1}) != 0 || !lane.Arm()) continue;
      (void)test::WaitReadable(lane.event_fd(), limit - Clock::Real()->Now());
      lane.Disarm();
    }
    (void)lane.Poll({&message, 1});  // what arrived in time, though this thread woke up late
    const Duration took = Clock::Real()->Now() - silent_since_;
    EXPECT_EQ(lane.status().code(), absl::StatusCode::kUnavailable)
        << who << ", " << took.count() / 1'000'000 << " ms";
  }

  // A request under way to the holder, and there; its slot.
  static uint32_t Ask(LanePair& pair) {
    const std::optional<uint32_t> slot = pair.request->Acquire();
    EXPECT_TRUE(slot.has_value() && pair.request->Post(*slot, 1).ok());
    EXPECT_TRUE(test::AwaitRequest(*pair.serve).has_value());
    return slot.value_or(0);
  }

  UniqueFd home_, holder_side_, requester_side_;
  std::unique_ptr<Fabric> fabric_ = NewTcpFabric(Clock::Real());
  std::unique_ptr<Listener> listener_;
  Instant silent_since_;
};

// Every state that a lane can be in, side by side.
TEST_F(TcpSilence, BothAreDeaf) {
  std::vector<std::pair<std::string, LanePair>> lanes;
  for (const char* name : {"idle", "waits for a reply", "request under way", "reply under way",
                           "half a reply", "window closed"}) {
    lanes.emplace_back(name, Make());
    ASSERT_TRUE(lanes.back().second.request && lanes.back().second.serve);
  }
  const auto lane = [&](size_t i) -> LanePair& { return lanes[i].second; };
  (void)Ask(lane(1));
  const uint32_t small = Ask(lane(3));
  ASSERT_TRUE(lane(4).serve->Post(Ask(lane(4)), kOverfullBytes).ok());
  ASSERT_TRUE(lane(5).serve->Post(Ask(lane(5)), kOverfullBytes).ok());
  Completion completion;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(lane(4).request->Poll({&completion, 1}), 0u);
  Silence(Deaf::kBoth);
  const std::optional<uint32_t> slot = lane(2).request->Acquire();
  ASSERT_TRUE(lane(2).request->Post(*slot, 64).ok());
  ASSERT_TRUE(lane(3).serve->Post(small, 64).ok());
  // No thread reads here: the holder finds it by probing the window. Kept, so nothing is closed.
  const std::unique_ptr<RequestLane> unread = std::move(lane(5).request);
  ExpectFound(std::move(lanes));
}

// One end's packets are lost, the other's arrive: both ends still find it.
TEST_F(TcpSilence, OnlyTheHolderIsDeaf) {
  std::vector<std::pair<std::string, LanePair>> lanes;
  for (const char* name : {"idle", "request under way"}) lanes.emplace_back(name, Make());
  ASSERT_TRUE(lanes[0].second.request && lanes[1].second.request);
  Silence(Deaf::kHolder);
  const std::optional<uint32_t> slot = lanes[1].second.request->Acquire();
  ASSERT_TRUE(lanes[1].second.request->Post(*slot, 64).ok());
  ExpectFound(std::move(lanes));
}

TEST_F(TcpSilence, OnlyTheRequesterIsDeaf) {
  std::vector<std::pair<std::string, LanePair>> lanes;
  for (const char* name : {"idle", "reply under way"}) lanes.emplace_back(name, Make());
  ASSERT_TRUE(lanes[0].second.request && lanes[1].second.request);
  const uint32_t slot = Ask(lanes[1].second);
  Silence(Deaf::kRequester);
  ASSERT_TRUE(lanes[1].second.serve->Post(slot, 64).ok());
  ExpectFound(std::move(lanes));
}

// The first probe, 1.0 to 1.13 s after the last sign of life, is lost here, at either end; the
// second, a second later, is answered.
TEST_F(TcpSilence, ForgivesOneLostProbe) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  Silence(Deaf::kBoth);
  ASSERT_TRUE(pair.request->Arm() && pair.serve->Arm());
  EXPECT_FALSE(test::WaitReadable(pair.request->event_fd(), std::chrono::milliseconds(1600)));
  EndSilence();
  EXPECT_FALSE(test::WaitReadable(pair.request->event_fd(), kFoundMax));
  EXPECT_FALSE(test::WaitReadable(pair.serve->event_fd(), Duration(0)));
  (void)Ask(pair);
}

}  // namespace
}  // namespace ckv
