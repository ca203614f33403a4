#include "tests/sim/scheduler.h"

#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/time/time.h"
#include "proto/base/status.h"

namespace ckv::sim {
namespace {

// The cost of a look at the clock, and of a turn, in virtual time. A thread that polls until a
// deadline must get there.
constexpr int64_t kTickNs = 50;
constexpr int64_t kTurnNs = kUs;

constexpr int64_t kWallStartNs = 1'700'000'000 * kSecond;

Scheduler* g_scheduler = nullptr;

}  // namespace

// A std::binary_semaphore would give up the processor a few times before it sleeps, which on one
// processor costs more than the sleep.
class Scheduler::Turn {
 public:
  void Give() {
    is_given_.store(1, std::memory_order_release);
    syscall(SYS_futex, &is_given_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  void Await() {
    while (is_given_.exchange(0, std::memory_order_acquire) == 0) {
      syscall(SYS_futex, &is_given_, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
    }
  }

 private:
  std::atomic<uint32_t> is_given_{0};
};

struct Scheduler::Worker {
  enum class Wait { kNone, kPost, kFds, kReady };
  uint64_t number = 0;
  Process* process = nullptr;
  std::thread thread;
  Turn turn;
  Wait wait = Wait::kNone;
  int64_t until = kNever;
  std::atomic<int32_t>* posts = nullptr;
  std::vector<pollfd> fds;
  bool has_fd_ready = false;  // as of the last look
  const absl::FunctionRef<bool()>* ready = nullptr;
  int64_t await_deadline = kNever;
  bool ended = false;
};

namespace {
thread_local void* t_worker = nullptr;
}  // namespace

Scheduler& Sim() {
  CKV_CHECK(g_scheduler != nullptr);
  return *g_scheduler;
}

Scheduler::Scheduler(uint64_t seed) : random_(seed) {
  CKV_CHECK(g_scheduler == nullptr);
  g_scheduler = this;
  first_.name = "driver";
  auto worker = std::make_unique<Worker>();
  worker->number = ++thread_count_;
  worker->process = &first_;
  t_worker = worker.get();
  workers_.push_back(std::move(worker));
  Platform::Simulate(this);
}

uint64_t Scheduler::Draw(uint64_t end) { return random_() % end; }

void Scheduler::At(int64_t time, absl::AnyInvocable<void()> event) {
  events_.push({std::max(time, now_), ++event_count_, std::move(event)});
}

void Scheduler::Note(std::string_view what) {
  for (const char c : what) hash_ = (hash_ ^ static_cast<uint8_t>(c)) * 0x100000001b3;
}

int64_t Scheduler::Tick() { return now_ += kTickNs; }

Process* Scheduler::current_process() const { return static_cast<Worker*>(t_worker)->process; }
uint64_t Scheduler::current_thread() const { return static_cast<Worker*>(t_worker)->number; }

void Scheduler::set_await_deadline(int64_t time) {
  static_cast<Worker*>(t_worker)->await_deadline = time;
}

uint64_t Scheduler::StartThread(absl::AnyInvocable<void()> run) {
  return StartIn(current_process(), std::move(run));
}

uint64_t Scheduler::StartIn(Process* process, absl::AnyInvocable<void()> run) {
  auto worker = std::make_unique<Worker>();
  Worker* const started = worker.get();
  started->number = ++thread_count_;
  started->process = process;
  workers_.push_back(std::move(worker));
  ended_[started->number] = false;
  started->thread = std::thread(
      [this, started, work = std::move(run)]() mutable { Run(started, std::move(work)); });
  return started->number;
}

void Scheduler::Run(Worker* worker, absl::AnyInvocable<void()> run) {
  t_worker = worker;
  worker->turn.Await();
  ReapEnded();
  run();
  run = nullptr;  // destroyed while it has the turn
  worker->ended = true;
  ended_[worker->number] = true;
  Worker* const next = Pick();
  const auto me = std::find_if(workers_.begin(), workers_.end(),
                               [&](const auto& one) { return one.get() == worker; });
  to_reap_ = std::move(*me);
  workers_.erase(me);
  // A join orders the rest of the system thread before the next turn.
  next->turn.Give();
}

// The thread that ended frees its memory at its very end. Joining it first keeps the heap the same
// in every run.
void Scheduler::ReapEnded() {
  if (to_reap_ == nullptr) return;
  to_reap_->thread.join();
  to_reap_.reset();
}

void Scheduler::JoinThread(uint64_t thread) {
  Block(kNever, [&] { return ended_.at(thread); });
  ended_.erase(thread);
}

bool Scheduler::CanRun(const Worker& worker) { return !worker.ended && !worker.process->dead; }

// One system call looks at the descriptors of all threads.
void Scheduler::LookAtFds() {
  fds_.clear();
  for (const auto& worker : workers_) {
    worker->has_fd_ready = false;
    if (worker->wait != Worker::Wait::kFds || !CanRun(*worker)) continue;
    fds_.insert(fds_.end(), worker->fds.begin(), worker->fds.end());
  }
  if (fds_.empty() || ::poll(fds_.data(), fds_.size(), 0) <= 0) return;
  size_t at = 0;
  for (const auto& worker : workers_) {
    if (worker->wait != Worker::Wait::kFds || !CanRun(*worker)) continue;
    for (size_t i = 0; i < worker->fds.size(); ++i) {
      if (fds_[at++].revents != 0) worker->has_fd_ready = true;
    }
  }
}

bool Scheduler::IsReady(Worker& worker, bool with_fds) const {
  if (worker.wait == Worker::Wait::kNone || worker.until <= now_) return true;
  switch (worker.wait) {
    case Worker::Wait::kPost:
      return worker.posts->load(std::memory_order_relaxed) > 0;
    case Worker::Wait::kReady:
      return (*worker.ready)();
    case Worker::Wait::kFds:
      return with_fds && worker.has_fd_ready;
    case Worker::Wait::kNone:
      break;
  }
  return true;
}

void Scheduler::RunEvents() {
  while (!events_.empty() && events_.top().time <= now_) {
    absl::AnyInvocable<void()> run = std::move(events_.top().run);
    events_.pop();
    run();
  }
}

// Nothing can run now: time jumps to where something can.
void Scheduler::Advance() {
  int64_t next = events_.empty() ? kNever : events_.top().time;
  for (const auto& worker : workers_) {
    if (!CanRun(*worker)) continue;
    const int64_t from = worker->process->stopped_until;
    if (from > now_) {
      next = std::min(next, from);
    } else {
      next = std::min(next, worker->until);
    }
  }
  if (next == kNever) {
    std::fprintf(stderr, "simulation: every thread waits for ever\n");
    for (const auto& worker : workers_) {
      if (!CanRun(*worker)) continue;
      std::fprintf(stderr, "  thread %lu of %s: wait %d\n", worker->number,
                   worker->process->name.c_str(), static_cast<int>(worker->wait));
    }
    std::abort();
  }
  now_ = std::max(now_, next);
}

Scheduler::Worker* Scheduler::Pick() {
  now_ += kTurnNs;
  ++turn_count_;
  // Looking at descriptors takes a system call each. A thread that waits for one may be late.
  bool with_fds = Draw(4) == 0;
  while (true) {
    RunEvents();
    if (with_fds) LookAtFds();
    ready_.clear();
    for (const auto& worker : workers_) {
      if (CanRun(*worker) && worker->process->stopped_until <= now_ && IsReady(*worker, with_fds)) {
        ready_.push_back(worker.get());
      }
    }
    if (!ready_.empty()) break;
    if (with_fds) Advance();
    with_fds = true;
  }
  Worker* const picked = ready_[ready_.size() == 1 ? 0 : Draw(ready_.size())];
  hash_ =
      (hash_ ^ (picked->number * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(now_))) * 0x100000001b3;
  return picked;
}

void Scheduler::GiveTurn() {
  auto* const me = static_cast<Worker*>(t_worker);
  Worker* const next = Pick();
  if (next != me) {
    next->turn.Give();
    me->turn.Await();
    ReapEnded();
  }
  me->wait = Worker::Wait::kNone;
  me->until = kNever;
}

bool Scheduler::Block(int64_t until, absl::FunctionRef<bool()> ready) {
  auto* const me = static_cast<Worker*>(t_worker);
  me->wait = Worker::Wait::kReady;
  me->ready = &ready;
  me->until = until;
  GiveTurn();
  return ready();
}

void Scheduler::SleepUntil(int64_t time) {
  Block(time, [] { return false; });
}

bool Scheduler::WaitForPost(std::atomic<int32_t>& count) {
  auto* const me = static_cast<Worker*>(t_worker);
  CKV_CHECK(me != nullptr);
  me->wait = Worker::Wait::kPost;
  me->posts = &count;
  me->until = me->await_deadline;
  if (count.load(std::memory_order_relaxed) == 0) GiveTurn();
  me->wait = Worker::Wait::kNone;
  me->until = kNever;
  if (count.load(std::memory_order_acquire) > 0) {
    count.fetch_sub(1, std::memory_order_acquire);
    return true;
  }
  me->await_deadline = kNever;  // the wait for the mutex that follows has none
  return false;
}

int Scheduler::Poll(std::span<pollfd> fds, const timespec& at_most) {
  auto* const me = static_cast<Worker*>(t_worker);
  me->wait = Worker::Wait::kFds;
  me->fds.assign(fds.begin(), fds.end());
  me->until = now_ + at_most.tv_sec * kSecond + at_most.tv_nsec;
  GiveTurn();
  return ::poll(fds.data(), fds.size(), 0);
}

int Scheduler::EpollWait(int epoll_fd, std::span<epoll_event> events, int timeout_ms) {
  if (timeout_ms != 0) {
    pollfd one = {epoll_fd, POLLIN, 0};
    const int64_t ms = timeout_ms < 0 ? 3'600'000 : timeout_ms;
    Poll({&one, 1}, {ms / 1000, ms % 1000 * kMs});
  }
  return ::epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()), 0);
}

void Scheduler::Yield() { GiveTurn(); }

void Scheduler::Random(std::span<std::byte> bytes) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
}

int64_t Scheduler::WallClockNs() { return kWallStartNs + now_ + current_process()->wall_ahead_ns; }

bool NodeClock::Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline) {
  if (condition.Eval()) return true;
  if (deadline == kInstantMax) {
    mu.Await(condition);
    return true;
  }
  if (Now() >= deadline) return false;
  Sim().set_await_deadline(TimeOf(deadline));
  // The scheduler ends the wait, at the virtual deadline. Abseil's own time does not count.
  const bool holds = mu.AwaitWithTimeout(condition, absl::Hours(24));
  Sim().set_await_deadline(kNever);
  return holds;
}

}  // namespace ckv::sim
