// Goal: a simulation is what its seed says, to the bit, and its threads run as real ones could.
// Method: small programs of threads that wait, sleep and race, each in a child process.

#include "tests/sim/scheduler.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "proto/host/thread.h"
#include "server/dispatch/side_thread.h"
#include "tests/sim/child.h"

namespace ckv::sim {
namespace {

using std::chrono::milliseconds;

// Returns what `program` returned in a simulation of this seed, and the hash of its turns.
std::string Simulate(uint64_t seed, const std::function<std::string()>& program) {
  const ChildOutcome outcome = RunInChild([&](std::string& text) {
    auto* const scheduler = new Scheduler(seed);
    text = program();
    absl::StrAppend(&text, " hash ", scheduler->hash());
    return 0;
  });
  EXPECT_FALSE(outcome.crashed) << "signal " << outcome.code;
  return outcome.text;
}

// Three threads add their letters to a text, each after a wait that a mutex, a clock, a descriptor
// or a job's thread ends.
std::string Race() {
  static Process process;
  static const NodeClock clock(&process);
  std::string text;
  absl::Mutex mu;
  int turn = 0;
  const int bell = eventfd(0, EFD_NONBLOCK);
  const auto add = [&](char letter) {
    absl::MutexLock lock(&mu);
    text += letter;
    ++turn;
  };
  std::vector<Thread> threads;
  threads.emplace_back([&] {
    for (int i = 0; i < 20; ++i) {
      {
        absl::MutexLock lock(&mu);
        const int before = turn;
        const auto moved = [&] { return turn != before; };
        const_cast<NodeClock&>(clock).Await(mu, absl::Condition(&moved),
                                            clock.Now() + milliseconds(3));
      }
      add('a');
    }
  });
  threads.emplace_back([&] {
    for (int i = 0; i < 20; ++i) {
      pollfd one = {bell, POLLIN, 0};
      PollFds({&one, 1}, {0, static_cast<long>(2 * kMs)});
      eventfd_t count = 0;
      if (one.revents != 0) eventfd_read(bell, &count);
      add('b');
    }
  });
  threads.emplace_back([&] {
    SideThread side([&] { eventfd_write(bell, 1); });
    for (int i = 0; i < 20; ++i) {
      side.Start([&] { add('s'); });
      const_cast<NodeClock&>(clock).WaitUntil(clock.Now() + milliseconds(1));
      while (!side.finished()) YieldProcessor();
      side.Collect();
      add('c');
    }
  });
  for (Thread& thread : threads) thread.join();
  close(bell);
  return text;
}

TEST(Scheduler, OneSeedIsOneRun) {
  const std::string first = Simulate(1, Race);
  EXPECT_EQ(std::count(first.begin(), first.end(), 's'), 20 + 1);  // one in "hash"
  EXPECT_EQ(Simulate(1, Race), first);
  EXPECT_EQ(Simulate(1, Race), first);
}

TEST(Scheduler, SeedsDiffer) {
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const std::string text = Simulate(seed, Race);
    orders.insert(text.substr(0, text.find(' ')));
  }
  EXPECT_EQ(orders.size(), 8u);
}

TEST(Scheduler, ADayOfWaitsTakesNoTime) {
  const std::string text = Simulate(3, [] {
    static Process process;
    static NodeClock clock(&process);
    const Instant begin = clock.Now();
    clock.WaitUntil(begin + std::chrono::hours(24));
    return absl::StrCat((clock.Now() - begin) / std::chrono::hours(1));
  });
  EXPECT_EQ(text.substr(0, 3), "24 ");
}

TEST(Scheduler, AKilledProcessNeverRunsAgain) {
  const std::string text = Simulate(4, [] {
    auto* const process = new Process;
    std::atomic<int> count = 0;
    Sim().StartIn(process, [&] {
      while (true) {
        ++count;
        Sim().SleepUntil(Sim().now() + kMs);
      }
    });
    Sim().At(Sim().now() + 100 * kMs, [&] { process->dead = true; });
    Sim().SleepUntil(Sim().now() + 200 * kMs);
    const int at_death = count;
    Sim().SleepUntil(Sim().now() + kSecond);
    return absl::StrCat(at_death > 50 && at_death <= 101, count - at_death);
  });
  EXPECT_EQ(text.substr(0, 3), "10 ");
}

TEST(Scheduler, AStoppedProcessMissesItsDeadlines) {
  const std::string text = Simulate(5, [] {
    auto* const process = new Process;
    auto* const clock = new NodeClock(process);
    int64_t woke = 0;
    const int64_t begin = Sim().now();
    const uint64_t thread = Sim().StartIn(process, [&] {
      clock->WaitUntil(clock->Now() + milliseconds(10));
      woke = Sim().now();
    });
    Sim().SleepUntil(begin + kMs);
    process->stopped_until = begin + kSecond;
    Sim().JoinThread(thread);
    return absl::StrCat((woke - begin) / kMs >= 1000);
  });
  EXPECT_EQ(text.substr(0, 2), "1 ");
}

TEST(Scheduler, RandomBytesAndIdsFollowTheSeed) {
  const auto words = [] { return absl::StrCat(RandomWord(), ",", RandomWord()); };
  EXPECT_EQ(Simulate(6, words), Simulate(6, words));
  EXPECT_NE(Simulate(6, words), Simulate(7, words));
}

TEST(Scheduler, WaitsForEverAreReported) {
  const ChildOutcome outcome = RunInChild([](std::string&) {
    new Scheduler(1);
    absl::Mutex mu;
    absl::MutexLock lock(&mu);
    const bool never = false;
    mu.Await(absl::Condition(&never));
    return 0;
  });
  EXPECT_TRUE(outcome.crashed);
}

}  // namespace
}  // namespace ckv::sim
