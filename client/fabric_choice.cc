#include "client/fabric_choice.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "spdlog/spdlog.h"
#include "transport/probe.h"

namespace ckv {
namespace {

// Of one fabric. A choice between shm and tcp took 7 to 10 ms on idle processors, most of it for
// the copies that tell the bandwidth of memory.
constexpr uint32_t kWarmupCount = 8;
constexpr size_t kRoundCount = 32;
constexpr int kFullProbeCount = 3;  // the best bandwidth counts
constexpr uint32_t kFullRoundCount = 3;
// Other engines may choose again and again meanwhile, where no choice holds.
constexpr int kTurnCountMax = 3;

bool OverMemory(FabricKind kind) {
  return kind == FabricKind::kShm || kind == FabricKind::kLoopback;
}

// The lane that is kept so far.
struct Candidate {
  size_t fabric = 0;  // ordinal in LinkOptions::fabrics
  OpenedLane opened;
};

// One round over all fabrics.
class Chooser {
 public:
  Chooser(const LaneRequest& request, HolderPeer& peer)
      : request_(request),
        fabrics_(request.options->fabrics),
        clock_(*request.options->clock),
        peer_(peer) {
    for (const Fabric* fabric : fabrics_) trials_.push_back({fabric->kind(), {}, 0, 0, ""});
  }
  ~Chooser() {
    if (best_) CloseLane(*request_.control, clock_, best_->opened);
  }
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;

  // `*made` is the choice, where there is one.
  absl::StatusOr<OpenedLane> Run(std::optional<FabricChoice>* made);

 private:
  // Offers some of the fabrics from `first_` on, and puts it behind the last one that was settled.
  absl::Status TryNext();
  void Refuse(size_t begin, size_t end, const LaneAttempt& attempt);
  absl::Status Measure(const OpenedLane& opened, Instant probe_by, FabricTrial& trial);
  void Keep(size_t fabric, OpenedLane opened, Instant probe_by);
  bool Known(FabricKind kind) const {
    return std::find(holder_fabrics_.begin(), holder_fabrics_.end(), kind) != holder_fabrics_.end();
  }
  absl::Status NoneError() const;
  std::string DescribeTrials() const;

  const LaneRequest& request_;
  const std::span<Fabric* const> fabrics_;
  Clock& clock_;
  HolderPeer& peer_;
  std::vector<FabricTrial> trials_;         // of `fabrics_`
  std::vector<FabricKind> holder_fabrics_;  // empty: not known
  size_t first_ = 0;
  std::optional<Candidate> best_;
  double copy_bandwidth_ = 0;  // 0: not measured yet
};

absl::StatusOr<OpenedLane> Chooser::Run(std::optional<FabricChoice>* made) {
  while (first_ < fabrics_.size()) CKV_RETURN_IF_ERROR(TryNext());
  if (!best_) return NoneError();
  OpenedLane opened = std::move(best_->opened);
  const FabricTrial& taken = trials_[best_->fabric];
  best_.reset();
  spdlog::info("{}: spoken to over {}; an exchange of 16 rows: {}", peer_.Describe(),
               FabricName(taken.fabric), DescribeTrials());
  if (taken.constants.bandwidth_bytes_per_s > 0) {
    peer_.fabric.Set(taken.constants, OverMemory(taken.fabric));
    peer_.probed_ns.store(clock_.Now().ns, std::memory_order_relaxed);
  }
  *made = FabricChoice{0, taken.fabric, opened.epoch, trials_};
  return opened;
}

absl::Status Chooser::TryNext() {
  if (!holder_fabrics_.empty() && !Known(trials_[first_].fabric)) {
    trials_[first_++].why_not = "the holder has none";
    return absl::OkStatus();
  }
  // What the holder has is known once it has answered; before, it picks from all that are left.
  const size_t count = holder_fabrics_.empty() ? fabrics_.size() - first_ : 1;
  // A fabric that hangs leaves the others their share of the time.
  const Instant now = clock_.Now();
  const Instant share_end =
      now + std::max(request_.deadline - now, Duration(0)) / int64_t(fabrics_.size() - first_);
  LaneAttempt attempt = OpenLane(request_, fabrics_.subspan(first_, count), share_end);
  const size_t begin = first_, taken = first_ + attempt.taken;
  Refuse(begin, taken, attempt);
  first_ = std::min(taken + 1, begin + count);
  if (attempt.taken == count) {
    // Not about fabrics, but about the holder or the session.
    return best_ || absl::IsUnavailable(attempt.status) ? absl::OkStatus() : attempt.status;
  }
  if (!attempt.holder_fabrics.empty()) holder_fabrics_ = std::move(attempt.holder_fabrics);
  if (attempt.status.ok()) {
    Keep(taken, std::move(attempt.opened), share_end);
  } else {
    trials_[taken].why_not = std::string(attempt.status.message());
  }
  return absl::OkStatus();
}

// Fabrics [begin, end) were offered, or could not be, and are not the one taken.
void Chooser::Refuse(size_t begin, size_t end, const LaneAttempt& attempt) {
  for (size_t i = begin; i < end; ++i) {
    const absl::Status& dialed = attempt.dialed[i - begin];
    if (!dialed.ok()) {
      trials_[i].why_not = std::string(dialed.message());
    } else if (attempt.taken == attempt.dialed.size()) {
      trials_[i].why_not = std::string(attempt.status.message());
    } else {
      trials_[i].why_not = "the holder took another that was offered with it";
    }
  }
}

// Fills the trial from a lane of it.
absl::Status Chooser::Measure(const OpenedLane& opened, Instant probe_by, FabricTrial& trial) {
  ProbeOptions options;
  options.warmup_count = kWarmupCount;
  options.round_count = 1;
  options.bandwidth_round_count = 0;
  options.deadline = std::min(probe_by, request_.deadline);
  options.session = opened.session.value;
  options.epoch = opened.epoch.value;
  std::array<double, kRoundCount> rounds;
  for (double& round_us : rounds) {
    CKV_ASSIGN_OR_RETURN(const ProbeResult probe, Probe(*opened.lane, clock_, options));
    round_us = probe.t_probe_us_p50;
    options.warmup_count = 0;
  }
  std::sort(rounds.begin(), rounds.end());
  // As LiveFabric: what disturbs a round trip only ever adds to it.
  trial.constants.t_probe_us = rounds[1];
  if (OverMemory(trial.fabric)) {
    if (copy_bandwidth_ == 0) copy_bandwidth_ = CopyBandwidth(clock_);
    trial.constants.bandwidth_bytes_per_s = copy_bandwidth_;
  } else {
    options.bandwidth_round_count = kFullRoundCount;
    for (int i = 0; i < kFullProbeCount; ++i) {
      CKV_ASSIGN_OR_RETURN(const ProbeResult probe, Probe(*opened.lane, clock_, options));
      trial.constants.bandwidth_bytes_per_s =
          std::max(trial.constants.bandwidth_bytes_per_s, probe.bandwidth_bytes_per_s);
    }
  }
  trial.exchange_us = ExchangeUs(trial.constants);
  trial.exchange_p50_us = trial.exchange_us + rounds[kRoundCount / 2] - rounds[1];
  return absl::OkStatus();
}

// Probes the lane, and drops it or the one that was the best before.
void Chooser::Keep(size_t fabric, OpenedLane opened, Instant probe_by) {
  FabricTrial& trial = trials_[fabric];
  if (absl::Status measured = Measure(opened, probe_by, trial); !measured.ok()) {
    trial = {trial.fabric, {}, 0, 0, std::string(measured.message())};
    CloseLane(*request_.control, clock_, opened);
    return;
  }
  if (best_) {
    const bool faster =
        trial.exchange_p50_us < trials_[best_->fabric].exchange_us * (1 - kExchangeTieShare);
    CloseLane(*request_.control, clock_, faster ? best_->opened : opened);
    if (!faster) return;
  }
  best_ = Candidate{fabric, std::move(opened)};
}

// "shm, tcp: opening a session: ...; verbs: ...": fabrics with the same reason share it.
absl::Status Chooser::NoneError() const {
  std::string text = "no fabric reaches it: ";
  for (size_t i = 0; i < trials_.size(); ++i) {
    text += FabricName(trials_[i].fabric);
    const bool last = i + 1 == trials_.size();
    if (!last && trials_[i + 1].why_not == trials_[i].why_not) {
      text += ", ";
    } else {
      absl::StrAppendFormat(&text, ": %s%s", trials_[i].why_not, last ? "" : "; ");
    }
  }
  return absl::UnavailableError(text);
}

// "shm 4.1 us, tcp 23.0 us, verbs: the holder has none".
std::string Chooser::DescribeTrials() const {
  std::string text;
  for (const FabricTrial& trial : trials_) {
    if (!text.empty()) text += ", ";
    text += FabricName(trial.fabric);
    if (trial.why_not.empty()) {
      absl::StrAppendFormat(&text, " %.1f us", trial.exchange_us);
    } else {
      absl::StrAppendFormat(&text, ": %s", trial.why_not);
    }
  }
  return text;
}

// Of the one fabric that there is no choice from.
absl::StatusOr<OpenedLane> OpenOnly(const LaneRequest& request, Fabric* fabric) {
  LaneAttempt attempt = OpenLane(request, {&fabric, 1}, request.deadline);
  if (!attempt.status.ok()) return attempt.status;
  return std::move(attempt.opened);
}

// Of the fabric that was chosen. Nothing: the choice does not hold any more.
absl::StatusOr<std::optional<OpenedLane>> OpenAsChosen(const LaneRequest& request,
                                                       const FabricChoice& choice) {
  const std::vector<Fabric*>& fabrics = request.options->fabrics;
  const auto chosen = std::find_if(fabrics.begin(), fabrics.end(), [&](const Fabric* fabric) {
    return fabric->kind() == choice.fabric;
  });
  if (chosen == fabrics.end()) return std::nullopt;
  auto opened = OpenOnly(request, *chosen);
  if (!opened.ok()) {
    if (absl::IsUnavailable(opened.status())) return std::nullopt;
    return opened.status();
  }
  if (opened->epoch == choice.epoch) return *std::move(opened);
  CloseLane(*request.control, *request.options->clock, *opened);
  return std::nullopt;
}

}  // namespace

double ExchangeUs(const FabricConstants& constants) {
  if (!(constants.bandwidth_bytes_per_s > 0)) return constants.t_probe_us;
  return constants.t_probe_us +
         double(kNominalExchangeBytes) / constants.bandwidth_bytes_per_s * 1e6;
}

absl::StatusOr<OpenedLane> OpenChosenLane(const LaneRequest& request, HolderPeer& peer) {
  const LinkOptions& options = *request.options;
  if (options.fabrics.empty()) return absl::UnavailableError("no fabric is configured");
  if (options.fabrics.size() == 1) return OpenOnly(request, options.fabrics.front());
  for (int turn = 0; turn < kTurnCountMax; ++turn) {
    const FabricChoice choice = peer.choice();
    if (choice.ordinal > 0) {
      CKV_ASSIGN_OR_RETURN(std::optional<OpenedLane> opened, OpenAsChosen(request, choice));
      if (opened) return *std::move(opened);
    }
    CKV_ASSIGN_OR_RETURN(const bool mine,
                         peer.BeginChoice(*options.clock, choice.ordinal, request.deadline));
    if (!mine) continue;
    std::optional<FabricChoice> made;
    auto opened = Chooser(request, peer).Run(&made);
    peer.EndChoice(std::move(made));
    return opened;
  }
  return absl::UnavailableError("its fabric was chosen again and again while a lane was opened");
}

}  // namespace ckv
