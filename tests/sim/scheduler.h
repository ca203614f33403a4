// Runs every thread of a simulated fleet one at a time, in virtual time, as a seed says (I8).
//
// Each thread of the fleet is a thread of the system that runs only while it has the turn. It gives
// up its turn where it blocks: in an absl::Mutex, in Clock::Await, in poll and epoll_wait, in a
// call of a simulated stub, fabric or file system. Then a generator picks the next one among those
// that can go on. If there is none, time jumps to the next deadline or event. So a run depends on
// its seed alone, every interleaving is one that real threads could have, and an idle second costs
// nothing. A turn costs two futex calls on one processor.

#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "proto/base/clock.h"
#include "proto/host/platform.h"

namespace ckv::sim {

inline constexpr int64_t kUs = 1000, kMs = 1000 * kUs, kSecond = 1000 * kMs;
inline constexpr int64_t kNever = INT64_MAX;

// The threads of one life of a simulated process. They can be killed or stopped together.
struct Process {
  std::string name;
  uint32_t node = 0;                 // a process that restarts keeps it
  bool dead = false;                 // its threads never run again, wherever they are
  int64_t stopped_until = 0;         // as SIGSTOP: none runs before
  int64_t no_descriptors_until = 0;  // it opens no file and no lane before
  int64_t clock_ahead_ns = 0;        // its monotonic clock minus the scheduler's time
  int64_t wall_ahead_ns = 0;         // its wall clock minus the true one
};

// Functions may be called by the thread that has the turn, which includes events. One per process
// of the system: it is never destroyed, because killed threads keep waiting in it.
class Scheduler final : public Platform {
 public:
  // The calling thread becomes the first thread of a process of its own, and has the turn.
  explicit Scheduler(uint64_t seed);

  int64_t now() const { return now_; }
  // Returns a number in [0, end), drawn from the seed. For the order of threads and random bytes;
  // faults have generators of their own.
  uint64_t Draw(uint64_t end);

  // Runs `event` at this time, or now if that has passed. An event belongs to no thread and must
  // not block.
  void At(int64_t time, absl::AnyInvocable<void()> event);
  // Blocks until `ready` returns true or the time has come. Returns what `ready` returns then.
  // `ready` is called by other threads, too.
  bool Block(int64_t until, absl::FunctionRef<bool()> ready);
  void SleepUntil(int64_t time);

  // Starts a thread in a process; events may call it, too.
  uint64_t StartIn(Process* process, absl::AnyInvocable<void()> run);
  Process* current_process() const;
  uint64_t current_thread() const;

  // Adds to the hash of what happened.
  void Note(std::string_view what);
  uint64_t hash() const { return hash_; }
  uint64_t turn_count() const { return turn_count_; }

  // Called by clocks: see NodeClock.
  int64_t Tick();
  void set_await_deadline(int64_t time);

  // Platform.
  uint64_t StartThread(absl::AnyInvocable<void()> run) override;
  void JoinThread(uint64_t thread) override;
  bool WaitForPost(std::atomic<int32_t>& count) override;
  int Poll(std::span<pollfd> fds, const timespec& at_most) override;
  int EpollWait(int epoll_fd, std::span<epoll_event> events, int timeout_ms) override;
  void Yield() override;
  void Random(std::span<std::byte> bytes) override;
  int64_t WallClockNs() override;

 private:
  class Turn;
  struct Worker;
  struct Event {
    int64_t time;
    uint64_t order;  // events of one time run in the order of At
    mutable absl::AnyInvocable<void()> run;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  static bool CanRun(const Worker& worker);
  void LookAtFds();
  bool IsReady(Worker& worker, bool with_fds) const;
  // Gives up the turn until the calling thread is picked again.
  void GiveTurn();
  Worker* Pick();
  void RunEvents();
  void Advance();
  void ReapEnded();
  void Run(Worker* worker, absl::AnyInvocable<void()> run);

  int64_t now_ = 1000 * kSecond;
  std::mt19937_64 random_;
  uint64_t hash_ = 0xcbf29ce484222325;
  uint64_t turn_count_ = 0;
  uint64_t thread_count_ = 0;
  uint64_t event_count_ = 0;
  Process first_;
  std::priority_queue<Event> events_;
  std::vector<std::unique_ptr<Worker>> workers_;  // those that have not ended
  std::map<uint64_t, bool> ended_;                // by number: whether a thread has ended
  std::unique_ptr<Worker> to_reap_;               // ended, but its system thread was not joined
  std::vector<Worker*> ready_;                    // used by Pick
  std::vector<pollfd> fds_;                       // used by LookAtFds
};

// The scheduler of this process. Set by its constructor.
Scheduler& Sim();

// The clock of one simulated process. The process must outlive it.
class NodeClock final : public Clock {
 public:
  explicit NodeClock(const Process* process) : process_(process) {}
  Instant Now() const noexcept override { return {Sim().Tick() + process_->clock_ahead_ns}; }
  bool Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The scheduler's time of an instant of this clock.
  int64_t TimeOf(Instant instant) const {
    return instant == kInstantMax ? kNever : instant.ns - process_->clock_ahead_ns;
  }

 private:
  const Process* const process_;
};

}  // namespace ckv::sim
