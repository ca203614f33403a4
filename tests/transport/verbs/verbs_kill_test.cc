// Goal: a peer process that is killed with work in flight costs its lane and nothing else: no queue
// pair, registration, slot or descriptor is left, however often.
// Method: in the guest. Every cycle a child process is a requester, or a holder, over a lane
// with all slots in flight, and is killed after a random number of messages; this end must find out
// by itself. Up to 16 lanes are dying at once. --cycles=N sets how many (default 60).

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "tests/transport/lane_pair.h"
#include "tests/transport/verbs/verbs_case.h"
#include "tests/transport/verbs/verbs_raw_peer.h"
#include "transport/socket.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv {
namespace {

constexpr LaneShape kShape = {4, 4096, 8192};
constexpr size_t kDyingMax = 16;
constexpr char kRequester = 'r', kHolder = 'h';  // what a child is
int cycle_count = 60;

VerbsOptions KillOptions() {
  VerbsOptions options;
  options.probe_interval_ms = 200;
  return options;
}

// The control plane: one pipe, one string at a time.
void Tell(int fd, const std::string& text) {
  const auto bytes = static_cast<uint32_t>(text.size());
  CKV_CHECK(write(fd, &bytes, sizeof(bytes)) == sizeof(bytes));
  CKV_CHECK(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}
std::string Hear(int fd) {
  uint32_t bytes = 0;
  if (recv(fd, &bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes)) return "";
  std::string text(bytes, '\0');
  if (recv(fd, text.data(), bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) return "";
  return text;
}

// Fills all slots and polls once.
size_t Ask(RequestLane& lane) {
  while (const std::optional<uint32_t> slot = lane.Acquire()) {
    if (!lane.Post(*slot, 4096).ok()) break;
  }
  std::array<Completion, 4> done;
  const size_t count = lane.Poll(done);
  for (size_t i = 0; i < count; ++i) lane.Release(done[i].slot);
  return count;
}
// Answers the requests that have arrived, from `store`.
size_t Serve(ServeLane& lane, std::span<const std::byte> store) {
  std::array<Arrival, 4> arrived;
  const size_t count = lane.Poll(arrived);
  const std::span<const std::byte> run = store.first(8000);
  for (size_t i = 0; i < count; ++i)
    (void)lane.PostGather(arrived[i].slot, 64, {&run, 1}, RegionType::kHost);
  return count;
}
// Sleeps until something arrives or the lane is down, for 500 ms at most.
void Sleep(Lane& lane) {
  if (!lane.status().ok() || !lane.Arm()) return;
  test::WaitReadable(lane.event_fd(), std::chrono::milliseconds(500));
  lane.Disarm();
}

// Runs until killed, or until its peer gives up.
int RunChild(int fd, char role) {
  auto fabric = test::MakeVerbs(KillOptions(), Clock::Real());
  if (role == kRequester) {
    auto dialer = *fabric->Dial(kShape);
    Tell(fd, dialer->offer());
    auto lane = dialer->Connect(Hear(fd), test::Soon());
    if (!lane.ok()) return 1;
    while ((*lane)->status().ok()) {
      if (Ask(**lane) == 0) Sleep(**lane);
    }
    return 1;
  }
  const std::vector<std::byte> store(1 << 20);
  ListenOptions listen;
  listen.gather_regions = {{RegionType::kHost, store}};
  auto listener = *fabric->Listen(listen);
  const auto answer = listener->Invite(Hear(fd), kShape, "", 1, test::Soon());
  if (!answer.ok()) return 1;
  Tell(fd, *answer);
  auto accepted = test::AcceptOne(*listener);
  if (!accepted) return 1;
  while (accepted->lane->status().ok()) {
    if (Serve(*accepted->lane, store) == 0) Sleep(*accepted->lane);
  }
  return 1;
}

struct Child {
  pid_t pid = -1;
  UniqueFd fd;
};

// Children are forked by a process that was forked before this one touched a device: executing a
// program takes most of a second under emulation. That process need not wait for its children.
int nursery_fd = -1;

int RunNursery(int fd) {
  signal(SIGCHLD, SIG_IGN);
  while (true) {
    char role = 0;
    const auto an_hour = Clock::Real()->Now() + std::chrono::hours(1);
    auto passed = ReceiveAllWithFd(fd, WritableBytesOf(role), *Clock::Real(), an_hour);
    if (!passed.ok()) return 0;
    const pid_t pid = fork();
    if (pid == 0) {
      close(fd);
      return RunChild(passed->get(), role);
    }
    CKV_CHECK(write(fd, &pid, sizeof(pid)) == sizeof(pid));
  }
}

Child Spawn(char role) {
  int ends[2] = {-1, -1};
  CKV_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Child child;
  child.fd = UniqueFd(ends[0]);
  const UniqueFd other(ends[1]);
  CKV_CHECK(SendWithFd(nursery_fd, BytesOf(role), other.get()));
  CKV_CHECK(recv(nursery_fd, &child.pid, sizeof(child.pid), MSG_WAITALL) == sizeof(child.pid));
  return child;
}
void Kill(const Child& child) {
  EXPECT_EQ(kill(child.pid, SIGKILL), 0) << "the child had ended by itself";
}

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class Cycles {
 public:
  Cycles() : store_(1 << 20), fabric_(test::MakeVerbs(KillOptions(), Clock::Real())) {
    ListenOptions listen;
    listen.gather_regions = {{RegionType::kHost, store_}};
    listener_ = *fabric_->Listen(listen);
  }

  const VerbsFabric& fabric() const { return *fabric_; }

  void KillRequester(int messages) {
    const Child child = Spawn(kRequester);
    const auto answer = listener_->Invite(Hear(child.fd.get()), kShape, "", 1, test::Soon());
    ASSERT_TRUE(answer.ok()) << answer.status();
    Tell(child.fd.get(), *answer);
    auto accepted = test::AcceptOne(*listener_);
    ASSERT_TRUE(accepted.has_value());
    for (int served = 0; served < messages && accepted->lane->status().ok();) {
      const size_t count = Serve(*accepted->lane, store_);
      served += static_cast<int>(count);
      if (count == 0) Sleep(*accepted->lane);
    }
    Kill(child);
    serving_.push_back(std::move(accepted->lane));
    Bury(kDyingMax);
  }

  void KillHolder(int messages) {
    const Child child = Spawn(kHolder);
    auto dialer = fabric_->Dial(kShape);
    ASSERT_TRUE(dialer.ok()) << dialer.status();
    Tell(child.fd.get(), (*dialer)->offer());
    auto lane = (*dialer)->Connect(Hear(child.fd.get()), test::Soon());
    ASSERT_TRUE(lane.ok()) << lane.status();
    for (int answered = 0; answered < messages && (*lane)->status().ok();) {
      const size_t count = Ask(**lane);
      answered += static_cast<int>(count);
      if (count == 0) Sleep(**lane);
    }
    Kill(child);
    asking_.push_back(*std::move(lane));
    Bury(kDyingMax);
  }

  // Waits for the ends of all but `left` lanes.
  void Bury(size_t left) {
    const Instant deadline = test::Soon();
    while (serving_.size() + asking_.size() > left) {
      ASSERT_LT(Clock::Real()->Now(), deadline) << "a peer's death was not found";
      std::erase_if(serving_, [&](auto& lane) {
        if (Serve(*lane, store_) == 0 && lane->status().ok()) lane->Disarm();  // look at once
        return !lane->status().ok();
      });
      std::erase_if(asking_, [&](auto& lane) {
        std::array<Completion, 4> done;
        if (lane->Poll(done) == 0 && lane->status().ok()) lane->Disarm();
        return !lane->status().ok();
      });
      test::WaitReadable(listener_->event_fd(), std::chrono::milliseconds(10));
    }
  }

 private:
  std::vector<std::byte> store_;
  std::unique_ptr<VerbsFabric> fabric_;
  std::unique_ptr<Listener> listener_;
  std::deque<std::unique_ptr<ServeLane>> serving_;
  std::deque<std::unique_ptr<RequestLane>> asking_;
};

TEST(VerbsKill, NothingRemainsOfAKilledPeer) {
  const std::string before = test::KernelResources();
  const size_t descriptors_before = OpenDescriptors();
  std::mt19937 rng(9);
  const Instant begin = Clock::Real()->Now();
  {
    Cycles cycles;
    for (int i = 0; i < cycle_count && !testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "cycle " << i);
      const int messages = static_cast<int>(rng() % 12);
      if (i % 2 == 0) {
        cycles.KillRequester(messages);
      } else {
        cycles.KillHolder(messages);
      }
    }
    cycles.Bury(0);
    test::AwaitUse(cycles.fabric(), VerbsUse{});
  }
  // The kernel removes a killed process's objects in its own time.
  const Instant deadline = Clock::Real()->Now() + std::chrono::seconds(5);
  while (test::KernelResources() != before && Clock::Real()->Now() < deadline) {
  }
  EXPECT_EQ(test::KernelResources(), before);
  EXPECT_EQ(OpenDescriptors(), descriptors_before);
  const auto took =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::Real()->Now() - begin);
  std::printf("%d cycles in %ld ms\n", cycle_count, static_cast<long>(took.count()));
}

}  // namespace
}  // namespace ckv

int main(int argc, char** argv) {
  int ends[2] = {-1, -1};
  CKV_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  if (fork() == 0) {
    close(ends[0]);
    return ckv::RunNursery(ends[1]);
  }
  close(ends[1]);
  ckv::nursery_fd = ends[0];
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kCycles = "--cycles=";
  if (argc > 1 && std::string_view(argv[1]).starts_with(kCycles)) {
    ckv::cycle_count = std::atoi(argv[1] + kCycles.size());
  }
  return RUN_ALL_TESTS();
}
