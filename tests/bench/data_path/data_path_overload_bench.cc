// Question: what does a holder do if it receives twice the load that it can serve? Bound: goodput
// of at least 0.9 of its peak, and admitted requests are answered within twice the p99 of 80 % of
// the peak.
//
// Requests of 16 query rows over one chunk of 256 tokens, 0.15 ms of a core each, by 8 sessions of
// one shm lane of 16 slots, driven by one thread. Each must be answered kDeadline after it was due.
//   peak       closed loop, with as many requests kept in flight as gave the best goodput of
//              several numbers beforehand
//   80 %, 2 x  open loop: arrivals at that share of the peak, exponential gaps from a fixed seed,
//              to the sessions in turn, whatever the result of earlier ones
// goodput      answers within the deadline, per second
// latency      from the moment a request was due, not from when it was posted: a driver or a lane
//              that falls behind does not hide it
// refused      answered ResourceExhausted, or due when its session's slots were all taken; every
//              other request was admitted, and counts in the p99 whether or not it was in time
//
// Peak, 80 % and 2 x take turns in one process, on two pinned CPUs. Ratios are computed per turn,
// and the medians over the turns are the figures.

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "absl/functional/function_ref.h"
#include "benchmark/benchmark.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 256;
constexpr uint32_t kRows = 16;
constexpr size_t kSessions = 8;
// A decode step of 27 layers in 50 ms leaves a layer 2 ms; an answer later than about twice that is
// useless.
constexpr Duration kDeadline = std::chrono::milliseconds(5);
constexpr std::array<size_t, 4> kUnderWay = {4, 16, 48, 128};  // of 8 x 16 slots
constexpr uint32_t kSearchRounds = 3;                          // of the closed loop at each of them
constexpr uint32_t kRounds = 7;
// Turns are short, since a neighbour's slice of a few ms is a queue that takes 5 x as long to empty
// at 80 %; one in which a thread lost its CPU is taken again. Twice the peak fills 128 slots in
// 10 ms.
constexpr Duration kLeadIn = std::chrono::milliseconds(30);  // requests due in it do not count
constexpr Duration kTurn = std::chrono::milliseconds(120);   // after that
constexpr uint32_t kTries = 4;

struct Outcome {
  std::vector<double> latency_us;  // of admitted requests
  uint64_t offered = 0, good = 0, late = 0, refused = 0;

  double goodput() const { return double(good) * 1e9 / double(Duration(kTurn).count()); }
};

class Driver {
 public:
  explicit Driver(Fleet& fleet) {
    for (size_t i = 0; i < kSessions; ++i) {
      lanes_.push_back(std::make_unique<AttendLane>(fleet, kRows));
      due_.emplace_back();
    }
  }

  // Keeps `under_way` requests posted.
  Outcome ClosedLoop(size_t under_way) {
    return Undisturbed([&] {
      for (Instant now = begin_; now < end_; now = Clock::Real()->Now()) {
        while (posted_ < under_way && Offer(now)) {
        }
        Collect();
      }
    });
  }

  // Offers `rate` requests a second.
  Outcome OpenLoop(double rate) {
    return Undisturbed([&] {
      std::exponential_distribution<double> gap_s(rate);
      const auto gap = [&] { return Duration(static_cast<int64_t>(gap_s(rng_) * 1e9)); };
      for (Instant due = begin_ + gap(); due < end_;) {
        if (due > Clock::Real()->Now()) {
          Collect();
          continue;
        }
        Offer(due);
        due = due + gap();
      }
    });
  }

 private:
  Outcome Undisturbed(absl::FunctionRef<void()> turn) {
    for (uint32_t tried = 1;; ++tried) {
      const int64_t before = SwitchesForced();
      outcome_ = {};
      begin_ = Clock::Real()->Now();
      end_ = begin_ + kLeadIn + kTurn;
      turn();
      while (posted_ != 0) Collect();  // offered within the turn
      if (tried == kTries || SwitchesForced() == before) return std::move(outcome_);
    }
  }

  bool Counts(Instant due) const { return due >= begin_ + kLeadIn; }

  // Posts a request that was due at `due`; false if its session has no slot.
  bool Offer(Instant due) {
    const size_t session = next_++ % kSessions;
    outcome_.offered += Counts(due);
    const Duration left = due + kDeadline - Clock::Real()->Now();
    const std::optional<uint64_t> id = lanes_[session]->Post(0, left);
    if (!id) {
      outcome_.refused += Counts(due);
      return false;
    }
    due_[session].resize(std::max(due_[session].size(), size_t(*id) + 1));
    due_[session][*id] = due;
    ++posted_;
    return true;
  }

  void Collect() {
    for (size_t session = 0; session < kSessions; ++session) {
      while (const auto answer = lanes_[session]->Poll()) {
        --posted_;
        const Instant due = due_[session][answer->id];
        if (Counts(due)) Judge(*answer, Clock::Real()->Now() - due);
      }
    }
  }

  void Judge(const AttendLane::Answer& answer, Duration latency) {
    if (answer.code == absl::StatusCode::kResourceExhausted) {
      ++outcome_.refused;
      return;
    }
    CKV_CHECK(answer.code == absl::StatusCode::kOk ||
              answer.code == absl::StatusCode::kDeadlineExceeded);
    const bool good = answer.code == absl::StatusCode::kOk && latency <= kDeadline;
    ++(good ? outcome_.good : outcome_.late);
    outcome_.latency_us.push_back(double(latency.count()) / 1e3);
  }

  std::vector<std::unique_ptr<AttendLane>> lanes_;
  std::vector<std::vector<Instant>> due_;  // [session][request id]
  size_t next_ = 0, posted_ = 0;
  Instant begin_, end_;
  Outcome outcome_;
  std::mt19937_64 rng_{11};
};

// How many requests to keep under way for the best goodput.
size_t BestUnderWay(Driver& driver) {
  size_t best = 0;
  double best_goodput = 0;
  for (const size_t under_way : kUnderWay) {
    std::vector<double> goodputs;
    for (uint32_t round = 0; round < kSearchRounds; ++round) {
      goodputs.push_back(driver.ClosedLoop(under_way).goodput());
    }
    if (const double goodput = Quantile(goodputs, 0.5); goodput > best_goodput) {
      best = under_way;
      best_goodput = goodput;
    }
  }
  CKV_CHECK(best != 0);  // else nothing was ever answered in time
  return best;
}

void BM_Overload(benchmark::State& state) {
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.token_count = kTokens});
  Driver driver(fleet);
  driver.ClosedLoop(kSessions * LaneShape{}.slot_count);  // touches every page
  const size_t under_way = BestUnderWay(driver);
  for (auto _ : state) {
    std::vector<double> peaks, goodputs, tails, calm_p99s, full_p99s, refusals, lates;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const double peak = driver.ClosedLoop(under_way).goodput();
      const Outcome calm = driver.OpenLoop(0.8 * peak);
      const Outcome full = driver.OpenLoop(2 * peak);
      const double calm_p99 = Quantile(calm.latency_us, 0.99);
      const double full_p99 = Quantile(full.latency_us, 0.99);
      peaks.push_back(peak);
      goodputs.push_back(full.goodput() / peak);
      tails.push_back(full_p99 / calm_p99);
      calm_p99s.push_back(calm_p99);
      full_p99s.push_back(full_p99);
      refusals.push_back(double(full.refused) / double(full.offered));
      lates.push_back(double(full.late) / double(full.offered));
    }
    state.SetIterationTime(Quantile(full_p99s, 0.5) / 1e6);
    state.counters["goodput_ratio"] = Quantile(goodputs, 0.5);
    state.counters["p99_ratio"] = Quantile(tails, 0.5);
    state.counters["under_way"] = double(under_way);
    state.counters["peak_rate"] = Quantile(peaks, 0.5);
    state.counters["p99_at_80_us"] = Quantile(calm_p99s, 0.5);
    state.counters["p99_at_2x_us"] = Quantile(full_p99s, 0.5);
    state.counters["refused_share"] = Quantile(refusals, 0.5);
    state.counters["late_share"] = Quantile(lates, 0.5);
  }
}
BENCHMARK(BM_Overload)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
