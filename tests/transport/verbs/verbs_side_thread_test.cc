// Goal: jobs are done in order, concurrently with the thread that hands them over; too many, or too
// late, they are done by the caller; and a source's end, or the thread's, leaves nothing behind.
// Method: no device. A job that holds the thread up until it is let go, others behind it.

#include "transport/verbs/verbs_side_thread.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/transport/verbs/verbs_held_job.h"

namespace ckv {
namespace {

using test::HeldJob;
using test::HoldUp;

class Log {
 public:
  void Note(const std::string& what) {
    absl::MutexLock lock(&mu_);
    lines_.push_back(what);
  }
  std::vector<std::string> lines() const {
    absl::MutexLock lock(&mu_);
    return lines_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::string> lines_;
};

// Logs its run and its end, and whether they are on the thread that hands jobs over.
class LoggedJob final : public VerbsJob {
 public:
  LoggedJob(Log* log, std::string name) : log_(log), name_(std::move(name)) {}
  ~LoggedJob() override { log_->Note(name_ + " ends" + Where()); }
  void Run() noexcept override { log_->Note(name_ + " runs" + Where()); }
  void Hurry() noexcept override { hurried_ = true; }

 private:
  std::string Where() const {
    return std::this_thread::get_id() == home_ ? (hurried_ ? " here, in a hurry" : " here") : "";
  }

  Log* const log_;
  const std::string name_;
  bool hurried_ = false;
  const std::thread::id home_ = std::this_thread::get_id();
};

using Lines = std::vector<std::string>;

TEST(VerbsSideThread, DoesJobsInOrderAndConcurrently) {
  Log log;
  VerbsSideThread side;
  const VerbsSourceId source = side.Open();
  HeldJob held;
  HoldUp(side, source, held);
  auto a = std::make_unique<LoggedJob>(&log, "a");
  auto b = std::make_unique<LoggedJob>(&log, "b");
  EXPECT_TRUE(side.Ask(source, a.get()));
  EXPECT_TRUE(side.Ask(source, b.get()));
  EXPECT_TRUE(side.Ask(source, a.get()));  // waits already: runs once
  side.Retire(source, std::move(a));
  EXPECT_EQ(log.lines(), Lines{});  // this thread did not wait
  held.LetGo();
  side.Retire(source, std::move(b));
  side.Close(source);
  EXPECT_EQ(log.lines(), (Lines{"a runs", "b runs", "a ends", "b ends"}));
}

TEST(VerbsSideThread, IsBounded) {
  Log log;
  VerbsSideThread side;
  const VerbsSourceId source = side.Open();
  HeldJob held;
  HoldUp(side, source, held);
  auto requested = std::make_unique<LoggedJob>(&log, "asked");
  ASSERT_TRUE(side.Ask(source, requested.get()));
  for (size_t i = 1; i < VerbsSideThread::kJobCountMax; ++i) {
    side.Retire(source, std::make_unique<LoggedJob>(&log, "one"));
  }
  EXPECT_EQ(log.lines(), Lines{});
  // Full: Retire ends the job on the calling thread, and Ask returns false.
  side.Retire(source, std::make_unique<LoggedJob>(&log, "surplus"));
  EXPECT_EQ(log.lines(), Lines{"surplus ends here, in a hurry"});
  LoggedJob refused(&log, "refused");
  EXPECT_FALSE(side.Ask(source, &refused));
  // But a job that waits to run is not destroyed before.
  side.Retire(source, std::move(requested));
  EXPECT_EQ(log.lines().size(), 1u);
  held.LetGo();
  side.Close(source);
  const Lines lines = log.lines();
  ASSERT_EQ(lines.size(), VerbsSideThread::kJobCountMax + 2);
  EXPECT_EQ(lines[1], "asked runs");
  EXPECT_EQ(lines.back(), "asked ends");
}

TEST(VerbsSideThread, AClosedSourceLeavesNothingAndOthersContinue) {
  Log log;
  VerbsSideThread side;
  const VerbsSourceId one = side.Open();
  const VerbsSourceId other = side.Open();
  for (int i = 0; i < 10; ++i) side.Retire(one, std::make_unique<LoggedJob>(&log, "one"));
  side.Close(one);
  EXPECT_EQ(log.lines(), Lines(10, "one ends"));
  side.Retire(one, std::make_unique<LoggedJob>(&log, "late"));
  EXPECT_EQ(log.lines().back(), "late ends here, in a hurry");
  LoggedJob refused(&log, "refused");
  EXPECT_FALSE(side.Ask(one, &refused));
  side.Retire(other, std::make_unique<LoggedJob>(&log, "other"));
  side.Stop();
  EXPECT_EQ(log.lines().back(), "other ends");
}

TEST(VerbsSideThread, StopDoesWhatWaitsAndThenTheCallerDoes) {
  Log log;
  VerbsSideThread side;
  const VerbsSourceId source = side.Open();
  HeldJob held;
  HoldUp(side, source, held);
  for (int i = 0; i < 10; ++i) side.Retire(source, std::make_unique<LoggedJob>(&log, "one"));
  std::thread stopper([&] { side.Stop(); });
  held.LetGo();
  stopper.join();
  EXPECT_EQ(log.lines(), Lines(10, "one ends"));
  side.Retire(source, std::make_unique<LoggedJob>(&log, "late"));
  EXPECT_EQ(log.lines().back(), "late ends here, in a hurry");
  side.Retire(side.Open(), std::make_unique<LoggedJob>(&log, "later"));
  EXPECT_EQ(log.lines().back(), "later ends here, in a hurry");
}

// Lanes begin and end on several threads, and so do listeners: every job ends once.
TEST(VerbsSideThread, ManySourcesAtOnce) {
  class Counted final : public VerbsJob {
   public:
    Counted(std::atomic<int>* runs, std::atomic<int>* ends) : runs_(runs), ends_(ends) {}
    ~Counted() override { ++*ends_; }
    void Run() noexcept override { ++*runs_; }

   private:
    std::atomic<int>* const runs_;
    std::atomic<int>* const ends_;
  };
  std::atomic<int> runs{0}, ends{0}, requested{0};
  VerbsSideThread side;
  std::vector<std::thread> owners;
  for (int owner = 0; owner < 4; ++owner) {
    owners.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        const VerbsSourceId source = side.Open();
        for (int i = 0; i < 50; ++i) {
          auto job = std::make_unique<Counted>(&runs, &ends);
          if (side.Ask(source, job.get())) ++requested;
          side.Retire(source, std::move(job));
        }
        side.Close(source);
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
  EXPECT_EQ(ends, 4 * 20 * 50);
  EXPECT_EQ(runs, requested);
}

}  // namespace
}  // namespace ckv
