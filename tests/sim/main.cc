// ckv_sim: runs simulated fleets from their seeds, and shortens the faults of those that fail.
//
//   ckv_sim --seed N [--trace]        one run; says what happened
//   ckv_sim --seed N --trace --log    and what its processes log
//   ckv_sim --seeds A..B              many; exit code 1 and the shortest list if one fails
//   ckv_sim --seeds A..B --minutes M  ends after M minutes
//   ckv_sim --seeds A..B --jobs N     N at once
//   ckv_sim --calm                    no faults
//   ckv_sim --plant BUG               with a bug that was built in (proto/base/planted_bug.h)
//   ckv_sim --failed FILE             adds seeds that fail to FILE
//   ckv_sim --kept FILE               runs the seeds in FILE first

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/clock.h"
#include "proto/base/planted_bug.h"
#include "tests/sim/child.h"
#include "tests/sim/fleet.h"
#include "tests/sim/plan.h"
#include "tests/sim/scheduler.h"

namespace ckv::sim {
namespace {

struct Options {
  uint64_t first = 1, last = 1;
  Fleet::Prints prints;
  bool calm = false, shrink = true, only_first = false;
  double minutes = 0;
  uint32_t job_count = 1;
  std::string failed_file, kept_file;
};

// A child writes lines of "name value" back, and the breach in the last one.
std::string Encode(const Outcome& outcome) {
  std::string text = absl::StrFormat("hash %d\nanswers %d\nerrors %d\nturns %d\nfaults %d\nns %d\n",
                                     outcome.hash, outcome.answer_count, outcome.error_count,
                                     outcome.turn_count, outcome.fault_count, outcome.fleet_ns);
  for (const auto& [name, count] : outcome.coverage) {
    absl::StrAppend(&text, "=", name, "=", count, "\n");
  }
  absl::StrAppend(&text, "breach ", outcome.breach, "\n");
  return text;
}

Outcome Decode(const ChildOutcome& child) {
  Outcome outcome;
  std::istringstream lines(child.text);
  for (std::string line; std::getline(lines, line);) {
    const auto value = [&](const char* name, auto& field) {
      const size_t size = std::strlen(name);
      if (line.compare(0, size, name) == 0 && line.size() > size && line[size] == ' ') {
        field = static_cast<std::decay_t<decltype(field)>>(
            std::strtoull(line.c_str() + size, nullptr, 10));
      }
    };
    value("hash", outcome.hash);
    value("answers", outcome.answer_count);
    value("errors", outcome.error_count);
    value("turns", outcome.turn_count);
    value("faults", outcome.fault_count);
    value("ns", outcome.fleet_ns);
    if (line[0] == '=') {
      const size_t at = line.rfind('=');
      outcome.coverage.emplace_back(line.substr(1, at - 1),
                                    std::strtoull(line.c_str() + at + 1, nullptr, 10));
    }
    if (line.compare(0, 7, "breach ") == 0) outcome.breach = line.substr(7);
  }
  if (child.crashed) {
    outcome.breach =
        absl::StrFormat("the process ended by signal %d (%s)", child.code, strsignal(child.code));
  } else if (child.code != 0) {
    outcome.breach = absl::StrFormat("the process ended with code %d", child.code);
  }
  return outcome;
}

std::function<int(std::string&)> RunOf(const Plan& plan, Fleet::Prints prints) {
  return [&plan, prints](std::string& text) {
    new Scheduler(plan.seed);
    auto* const fleet = new Fleet(plan, prints);
    text = Encode(fleet->Run());
    return 0;
  };
}

Outcome RunPlan(const Plan& plan) { return Decode(RunInChild(RunOf(plan, {}))); }

// Removes faults, first many at once, as long as the run still fails.
Plan Shrink(Plan plan) {
  size_t piece = std::max<size_t>(plan.faults.size() / 2, 1);
  while (!plan.faults.empty()) {
    bool any = false;
    for (size_t at = 0; at < plan.faults.size();) {
      Plan fewer = plan;
      const auto begin = fewer.faults.begin() + static_cast<ptrdiff_t>(at);
      fewer.faults.erase(begin,
                         begin + static_cast<ptrdiff_t>(std::min(piece, fewer.faults.size() - at)));
      if (RunPlan(fewer).breach.empty()) {
        at += piece;
      } else {
        plan = std::move(fewer);
        any = true;
      }
    }
    if (piece == 1 && !any) break;
    piece = std::max<size_t>(piece / 2, 1);
  }
  return plan;
}

void PrintFailure(const Plan& plan, const Outcome& outcome, bool shrink) {
  std::printf("seed %lu FAILED: %s\n", plan.seed, outcome.breach.c_str());
  if (!shrink) return;
  const Plan least = Shrink(plan);
  std::printf("  with %zu of its %zu faults: %s\n", least.faults.size(), plan.faults.size(),
              RunPlan(least).breach.c_str());
  for (const PlannedFault& fault : least.faults) std::printf("  %s\n", fault.Text().c_str());
  std::printf("  repeat: ckv_sim --seed %lu --trace\n", plan.seed);
  std::fflush(stdout);
}

// The sums of many runs.
class Totals {
 public:
  void Add(const Outcome& outcome) {
    ++run_count_;
    faults_ += outcome.fault_count;
    answers_ += outcome.answer_count;
    errors_ += outcome.error_count;
    turns_ += outcome.turn_count;
    fleet_seconds_ += static_cast<double>(outcome.fleet_ns) / 1e9;
    for (const auto& [name, count] : outcome.coverage) coverage_[name] += count;
    if (!outcome.breach.empty()) ++failed_count_;
  }
  uint64_t failed_count() const { return failed_count_; }

  void Print(double seconds) const {
    rusage used{};
    getrusage(RUSAGE_CHILDREN, &used);
    const auto of = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    const double cpu = of(used.ru_utime) + of(used.ru_stime);
    const auto runs = static_cast<double>(std::max<uint64_t>(run_count_, 1));
    std::printf(
        "%lu seeds, %lu failed; %.0f s of fleets in %.1f s, of which a processor worked %.1f s "
        "(%.0f times); %lu answers, %lu errors; %.0f faults and %.0f turns a seed\n",
        run_count_, failed_count_, fleet_seconds_, seconds, cpu, fleet_seconds_ / cpu, answers_,
        errors_, static_cast<double>(faults_) / runs, static_cast<double>(turns_) / runs);
    for (const auto& [name, count] : coverage_) std::printf("  %-20s %lu\n", name.c_str(), count);
  }

 private:
  std::map<std::string, uint64_t> coverage_;
  uint64_t run_count_ = 0, failed_count_ = 0, faults_ = 0, answers_ = 0, errors_ = 0, turns_ = 0;
  double fleet_seconds_ = 0;
};

std::vector<uint64_t> SeedsOf(const Options& options) {
  std::vector<uint64_t> seeds;
  if (!options.kept_file.empty()) {
    std::ifstream kept(options.kept_file);
    for (uint64_t seed = 0; kept >> seed;) seeds.push_back(seed);
  }
  for (uint64_t seed = options.first; seed <= options.last; ++seed) seeds.push_back(seed);
  return seeds;
}

int Run(const Options& options) {
  const std::vector<uint64_t> seeds = SeedsOf(options);
  const Instant begin = Clock::Real()->Now();
  const auto seconds = [&] { return UsSince(begin, *Clock::Real()) / 1e6; };
  struct Job {
    uint32_t number = 0;  // less than options.job_count
    Plan plan;
    Child child;
  };
  std::list<Job> jobs;
  std::vector<bool> is_used(options.job_count);
  Totals totals;
  size_t next = 0;
  bool ends = false;
  while (true) {
    ends =
        ends || next == seeds.size() || (options.minutes > 0 && seconds() > options.minutes * 60);
    if (!ends && jobs.size() < options.job_count) {
      const auto number =
          static_cast<uint32_t>(std::find(is_used.begin(), is_used.end(), false) - is_used.begin());
      is_used[number] = true;
      const Plan plan = DrawPlan(seeds[next++], options.calm);
      jobs.push_back({number, plan, Child(RunOf(plan, options.prints), number)});
      continue;
    }
    if (jobs.empty()) break;
    std::vector<pollfd> fds;
    for (const Job& job : jobs) fds.push_back({job.child.fd(), POLLIN, 0});
    poll(fds.data(), fds.size(), -1);
    auto job = jobs.begin();
    for (const pollfd& fd : fds) {
      const auto one = job++;
      if (fd.revents == 0 || !one->child.Read()) continue;
      const Outcome outcome = Decode(one->child.Finish());
      totals.Add(outcome);
      const uint64_t seed = one->plan.seed;
      if (options.first == options.last) std::printf("seed %lu: hash %016lx\n", seed, outcome.hash);
      if (!outcome.breach.empty()) {
        PrintFailure(one->plan, outcome, options.shrink);
        if (!options.failed_file.empty()) {
          std::ofstream(options.failed_file, std::ios::app) << seed << "\n";
        }
        ends = ends || options.only_first;
      }
      is_used[one->number] = false;
      jobs.erase(one);
    }
  }
  totals.Print(seconds());
  return totals.failed_count() == 0 ? 0 : 1;
}

int Usage() {
  std::fprintf(stderr,
               "usage: ckv_sim [--seed N | --seeds A..B] [--trace] [--log] [--calm] [--no-shrink] "
               "[--minutes M] [--jobs N] [--failed FILE] [--kept FILE] [--first] [--plant BUG]\n");
  return 2;
}

int Main(int argc, char** argv) {
  FixAddresses(argv);
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto next = [&]() -> const char* { return i + 1 < argc ? argv[++i] : ""; };
    if (name == "--seed") {
      options.first = options.last = std::strtoull(next(), nullptr, 10);
    } else if (name == "--seeds") {
      char* end = nullptr;
      options.first = std::strtoull(next(), &end, 10);
      if (std::strncmp(end, "..", 2) != 0) return Usage();
      options.last = std::strtoull(end + 2, nullptr, 10);
    } else if (name == "--trace") {
      options.prints.trace = true;
    } else if (name == "--log") {
      options.prints.log = true;
    } else if (name == "--calm") {
      options.calm = true;
    } else if (name == "--first") {
      options.only_first = true;
    } else if (name == "--no-shrink") {
      options.shrink = false;
    } else if (name == "--plant") {
#ifdef CKV_PLANTED
      PlantedBug() = next();
#else
      std::fprintf(stderr, "ckv_sim: built without -DCKV_PLANTED=ON\n");
      return 2;
#endif
    } else if (name == "--minutes") {
      options.minutes = std::strtod(next(), nullptr);
    } else if (name == "--jobs") {
      options.job_count =
          static_cast<uint32_t>(std::clamp<uint64_t>(std::strtoull(next(), nullptr, 10), 1, 64));
    } else if (name == "--kept") {
      options.kept_file = next();
    } else if (name == "--failed") {
      options.failed_file = next();
    } else {
      return Usage();
    }
  }
  return Run(options);
}

}  // namespace
}  // namespace ckv::sim

int main(int argc, char** argv) { return ckv::sim::Main(argc, argv); }
