// A round over the fabrics, in order of preference. It offers those that are left, notes which ones
// the holder does not take, and probes the lane that opened. It keeps the best lane so far and
// closes the other. After the last fabric it judges a fallback from verbs to tcp and logs the
// choice.

#include "client/holders/fabric_choice.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/holders/lane_pinning.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "transport/probe.h"

namespace ckv {
namespace {

// How one fabric is probed. A choice between shm and tcp took 7 to 10 ms on idle processors, most
// of it for the copies that measure memory bandwidth.
constexpr size_t kWarmupCount = 8;
constexpr size_t kRoundCount = 32;
constexpr int kFullProbeCount = 3;  // the best bandwidth counts
constexpr uint32_t kFullRoundCount = 3;
// The parts of a fabric's share of the time, which is 1.5 s of the default connect_timeout with two
// fabrics. Round trips get an eighth. The last full probe begins before a quarter is over and ends
// before a half is. If threads waited long for processors (load 7 on two), all probes together took
// more than the share.
constexpr int64_t kRoundsPart = 8, kFullProbesPart = 4, kMeasurePart = 2;
// With fewer round trips, the worst counts instead of the median.
constexpr size_t kMedianCountMin = 8;
// If no choice holds, other contexts may choose again and again meanwhile.
constexpr int kTurnCountMax = 3;

// The best lane so far.
struct KeptLane {
  size_t fabric = 0;  // ordinal in LinkOptions::fabrics
  OpenedLane opened;
};

// One round over all fabrics.
class FabricChooser {
 public:
  // `last` is the choice that no longer holds.
  FabricChooser(const LaneRequest& request, HolderPeer& peer, const FabricChoice& last)
      : request_(request),
        last_(last),
        fabrics_(request.options->fabrics),
        clock_(*request.options->clock),
        peer_(peer) {
    for (const Fabric* fabric : fabrics_) trials_.push_back({fabric->kind(), {}, 0, 0, ""});
    full_.resize(fabrics_.size());
  }
  ~FabricChooser() {
    if (best_) CloseLane(*request_.control, clock_, best_->opened);
  }
  FabricChooser(const FabricChooser&) = delete;
  FabricChooser& operator=(const FabricChooser&) = delete;

  // Returns the best lane. Sets `*made` to the choice, if one was made.
  absl::StatusOr<OpenedLane> Run(std::optional<FabricChoice>* made);

 private:
  // Offers some of the fabrics from `first_` on. Moves `first_` behind those that are settled.
  absl::Status TryNext();
  void Refuse(size_t begin, size_t end, const LaneAttempt& attempt);
  absl::StatusOr<std::vector<double>> MeasureRounds(const OpenedLane& opened, ProbeOptions options,
                                                    Instant enough);
  absl::StatusOr<double> MeasureBandwidth(const OpenedLane& opened, ProbeOptions options,
                                          Instant enough);
  absl::Status Measure(const OpenedLane& opened, Instant probe_by, FabricTrial& trial);
  void Keep(size_t fabric, OpenedLane opened, Instant probe_by);
  bool Known(FabricKind kind) const {
    return std::find(holder_fabrics_.begin(), holder_fabrics_.end(), kind) != holder_fabrics_.end();
  }
  absl::StatusOr<std::string> JudgeFallback() const;
  void Log(const FabricChoice& choice) const;
  absl::Status NoneError() const;
  std::string DescribeTrials() const;

  const LaneRequest& request_;
  const FabricChoice& last_;
  const std::span<Fabric* const> fabrics_;
  Clock& clock_;
  HolderPeer& peer_;
  std::vector<FabricTrial> trials_;         // one per fabric
  std::vector<FabricKind> holder_fabrics_;  // empty until the holder has answered
  std::vector<bool> full_;                  // offered, and the holder had no session left
  size_t first_ = 0;
  std::optional<KeptLane> best_;
  double copy_bandwidth_ = 0;  // 0 if not measured yet
};

absl::StatusOr<OpenedLane> FabricChooser::Run(std::optional<FabricChoice>* made) {
  while (first_ < fabrics_.size()) CKV_RETURN_IF_ERROR(TryNext());
  if (!best_) return NoneError();
  CKV_ASSIGN_OR_RETURN(std::string fallback, JudgeFallback());
  OpenedLane opened = std::move(best_->opened);
  const FabricTrial& taken = trials_[best_->fabric];
  best_.reset();
  if (taken.constants.bandwidth_bytes_per_s > 0) {
    peer_.fabric.Set(taken.constants, SharesMemory(taken.fabric));
    peer_.probed_ns.store(clock_.Now().ns, std::memory_order_relaxed);
  }
  *made = FabricChoice{0,       taken.fabric,        opened.epoch,   clock_.Now(),
                       trials_, std::move(fallback), holder_fabrics_};
  Log(**made);
  return opened;
}

// Returns why the choice is tcp instead of verbs, or an empty string if it is no fallback.
//   Unavailable         it is a fallback, which rdma_fallback refuses.
//   ResourceExhausted   the same, because the holder has no session left.
absl::StatusOr<std::string> FabricChooser::JudgeFallback() const {
  if (trials_[best_->fabric].fabric != FabricKind::kTcp) return std::string();
  for (size_t i = 0; i < trials_.size(); ++i) {
    const FabricTrial& trial = trials_[i];
    if (trial.fabric != FabricKind::kVerbs || trial.why_not.empty() || !Known(trial.fabric))
      continue;
    if (request_.options->rdma_fallback == RdmaFallback::kTcp) return trial.why_not;
    // Verbs may well work: a caller that waits or gives back a session may get it.
    if (full_[i]) return absl::ResourceExhaustedError(trial.why_not);
    return absl::UnavailableError(absl::StrFormat(
        "no verbs lane can be opened (%s), and rdma_fallback refuses tcp instead: repair it, set "
        "rdma_fallback to tcp, or take verbs out of the fabrics",
        trial.why_not));
  }
  return std::string();
}

// Logs the choice if it differs from the last one.
void FabricChooser::Log(const FabricChoice& choice) const {
  if (!choice.fallback.empty() && last_.fallback.empty()) {
    ckv::Log().warn("{}: fell back from verbs to tcp, as rdma_fallback allows: {}",
                    peer_.Describe(), choice.fallback);
  }
  if (last_.ordinal > 0 && last_.fabric == choice.fabric && last_.epoch == choice.epoch) return;
  ckv::Log().info("{}: spoken to over {}; an exchange of 16 rows: {}", peer_.Describe(),
                  FabricName(choice.fabric), DescribeTrials());
}

absl::Status FabricChooser::TryNext() {
  if (!holder_fabrics_.empty() && !Known(trials_[first_].fabric)) {
    trials_[first_++].why_not = "the holder has none";
    return absl::OkStatus();
  }
  // Once the holder has answered, its fabrics are known and offered one by one. Before, it picks
  // from all that are left.
  const size_t count = holder_fabrics_.empty() ? fabrics_.size() - first_ : 1;
  // Each fabric gets a share of the time, so that one that hangs leaves the others theirs.
  const Instant now = clock_.Now();
  const Instant share_end =
      now + std::max(request_.deadline - now, Duration(0)) / int64_t(fabrics_.size() - first_);
  LaneAttempt attempt = OpenLane(request_, fabrics_.subspan(first_, count), share_end);
  const size_t begin = first_, taken = first_ + attempt.taken;
  Refuse(begin, taken, attempt);
  first_ = std::min(taken + 1, begin + count);
  if (attempt.taken == count) {
    // The error is about the holder or the session, not about fabrics.
    return best_ || absl::IsUnavailable(attempt.status) ? absl::OkStatus() : attempt.status;
  }
  if (IsPinFailure(attempt.status)) return attempt.status;  // as it would be over others
  if (!attempt.holder_fabrics.empty()) holder_fabrics_ = std::move(attempt.holder_fabrics);
  if (attempt.status.ok()) {
    Keep(taken, std::move(attempt.opened), share_end);
  } else {
    trials_[taken].why_not = std::string(attempt.status.message());
  }
  return absl::OkStatus();
}

// Notes why fabrics [begin, end) were not taken: they could not be offered, or the holder declined.
void FabricChooser::Refuse(size_t begin, size_t end, const LaneAttempt& attempt) {
  for (size_t i = begin; i < end; ++i) {
    const absl::Status& dialed = attempt.dialed[i - begin];
    if (!dialed.ok()) {
      trials_[i].why_not = std::string(dialed.message());
      continue;
    }
    full_[i] = absl::IsResourceExhausted(attempt.status);
    trials_[i].why_not = attempt.taken == attempt.dialed.size()
                             ? std::string(attempt.status.message())
                             : "the holder took another that was offered with it";
  }
}

// Measures round trips until there are enough or their time is over, at least one.
absl::StatusOr<std::vector<double>> FabricChooser::MeasureRounds(const OpenedLane& opened,
                                                                 ProbeOptions options,
                                                                 Instant enough) {
  std::vector<double> rounds_us;
  while (rounds_us.size() < kWarmupCount + kRoundCount &&
         (rounds_us.empty() || clock_.Now() < enough)) {
    const auto probe = Probe(*opened.lane, clock_, options);
    if (absl::IsDeadlineExceeded(probe.status()) && !rounds_us.empty()) break;
    CKV_RETURN_IF_ERROR(probe.status());
    rounds_us.push_back(probe->t_probe_us_p50);
  }
  const size_t warmup_count = std::min(kWarmupCount, rounds_us.size() / 2);
  rounds_us.erase(rounds_us.begin(), rounds_us.begin() + static_cast<ptrdiff_t>(warmup_count));
  std::sort(rounds_us.begin(), rounds_us.end());
  return rounds_us;
}

// Returns bytes per second, or 0 if the probes did not show it.
absl::StatusOr<double> FabricChooser::MeasureBandwidth(const OpenedLane& opened,
                                                       ProbeOptions options, Instant enough) {
  options.bandwidth_round_count = kFullRoundCount;
  double best = 0;
  for (int i = 0; i < kFullProbeCount && (i == 0 || clock_.Now() < enough); ++i) {
    const Instant begin = clock_.Now();
    const auto probe = Probe(*opened.lane, clock_, options);
    if (absl::IsDeadlineExceeded(probe.status())) {
      // Slower than all bytes of the probe in the time that passed, so that rate is the estimate.
      const double seconds = double((clock_.Now() - begin).count()) * 1e-9;
      const double bytes = 2.0 * (1 + kFullRoundCount) * opened.lane->shape().request_bytes_max;
      return best > 0 || begin >= options.deadline ? best : bytes / seconds;
    }
    CKV_RETURN_IF_ERROR(probe.status());
    best = std::max(best, probe->bandwidth_bytes_per_s);
  }
  return best;
}

// Fills the trial by probing its lane. A lane that echoes is not refused for being slow. Its
// measurements so far count when its time is over.
absl::Status FabricChooser::Measure(const OpenedLane& opened, Instant probe_by,
                                    FabricTrial& trial) {
  const Instant begin = clock_.Now();
  const Duration share = std::min(probe_by, request_.deadline) - begin;
  ProbeOptions options;
  options.warmup_count = 0;
  options.round_count = 1;
  options.bandwidth_round_count = 0;
  options.deadline = begin + share;
  options.session = opened.session.value;
  options.epoch = opened.epoch.value;
  CKV_ASSIGN_OR_RETURN(const std::vector<double> rounds_us,
                       MeasureRounds(opened, options, begin + share / kRoundsPart));
  const bool many = rounds_us.size() >= kMedianCountMin;
  // The second best, as LiveFabric takes it: disturbances only ever add to a round trip.
  trial.constants.t_probe_us = rounds_us[many ? 1 : 0];
  if (SharesMemory(trial.fabric)) {
    if (copy_bandwidth_ == 0) copy_bandwidth_ = CopyBandwidth(clock_);
    trial.constants.bandwidth_bytes_per_s = copy_bandwidth_;
  } else {
    options.deadline = begin + share / kMeasurePart;
    CKV_ASSIGN_OR_RETURN(trial.constants.bandwidth_bytes_per_s,
                         MeasureBandwidth(opened, options, begin + share / kFullProbesPart));
  }
  trial.exchange_us = ExchangeUs(trial.constants);
  const double typical_us = many ? rounds_us[rounds_us.size() / 2] : rounds_us.back();
  trial.exchange_p50_us = trial.exchange_us + typical_us - trial.constants.t_probe_us;
  return absl::OkStatus();
}

// Probes the lane, then closes it or the best one so far.
void FabricChooser::Keep(size_t fabric, OpenedLane opened, Instant probe_by) {
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
  best_ = KeptLane{fabric, std::move(opened)};
}

// Returns "shm, tcp: opening a session: ...; verbs: ...". Fabrics with the same reason share it.
absl::Status FabricChooser::NoneError() const {
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

// Returns "shm 4.1 us, tcp 23.0 us, verbs: the holder has none".
std::string FabricChooser::DescribeTrials() const {
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

Fabric* FabricOf(const LinkOptions& options, FabricKind kind) {
  const auto found = std::find_if(options.fabrics.begin(), options.fabrics.end(),
                                  [&](const Fabric* fabric) { return fabric->kind() == kind; });
  CKV_CHECK(found != options.fabrics.end());
  return *found;
}

// Opens a lane on the only fabric.
absl::StatusOr<OpenedLane> OpenOnly(const LaneRequest& request, Fabric* fabric) {
  LaneAttempt attempt = OpenLane(request, {&fabric, 1}, request.deadline);
  if (!attempt.status.ok()) return attempt.status;
  return std::move(attempt.opened);
}

// Returns the fabrics that the holder has, for example "shm, tcp". The holder lists them when a
// requester opens a lane on another fabric. Returns an empty string if it takes none.
std::string ReadFabrics(const LaneRequest& request, const Fabric* but) {
  std::vector<Fabric*> others;
  for (Fabric* fabric : request.options->fabrics) {
    if (fabric != but) others.push_back(fabric);
  }
  LaneAttempt attempt = OpenLane(request, others, request.deadline);
  if (attempt.status.ok()) CloseLane(*request.control, *request.options->clock, attempt.opened);
  std::string names;
  for (const FabricKind kind : attempt.holder_fabrics)
    absl::StrAppendFormat(&names, "%s%s", names.empty() ? "" : ", ", FabricName(kind));
  return names;
}

absl::StatusOr<OpenedLane> OpenForced(const LaneRequest& request, FabricKind kind) {
  Fabric* const fabric = FabricOf(*request.options, kind);
  auto opened = OpenOnly(request, fabric);
  if (opened.ok() || !absl::IsUnavailable(opened.status())) return opened;
  const std::string has = ReadFabrics(request, fabric);
  const std::string text = absl::StrFormat("fabric %s is forced: %s", FabricName(kind),
                                           std::string(opened.status().message()));
  if (has.empty()) return absl::UnavailableError(text);
  // Waiting for the holder would not give it the fabric.
  const std::string reported =
      absl::StrFormat("%s; the holder has %s: force another, or none", text, has);
  return has.find(FabricName(kind)) == std::string::npos ? absl::FailedPreconditionError(reported)
                                                         : absl::UnavailableError(reported);
}

// Opens a lane on the chosen fabric. Returns nothing if the choice no longer holds.
absl::StatusOr<std::optional<OpenedLane>> OpenAsChosen(const LaneRequest& request,
                                                       const FabricChoice& choice) {
  const Instant now = request.options->clock->Now();
  if (!choice.fallback.empty() && now - choice.made >= kFallbackAgeMax) return std::nullopt;
  Fabric* const fabric = FabricOf(*request.options, choice.fabric);
  LaneAttempt attempt = OpenLane(request, {&fabric, 1}, request.deadline);
  if (!attempt.status.ok()) {
    if (absl::IsUnavailable(attempt.status)) return std::nullopt;
    return attempt.status;
  }
  // A holder that restarted with the same fabrics is reached in the same way. Probes would take the
  // first call 7 to 10 ms, and half a second if threads wait for processors.
  const bool same = attempt.holder_fabrics == choice.holder_fabrics && choice.fallback.empty();
  if (same || attempt.opened.epoch == choice.epoch) return std::move(attempt.opened);
  CloseLane(*request.control, *request.options->clock, attempt.opened);
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
  if (options.forced) return OpenForced(request, *options.forced);
  const auto count_fallback = [&](const std::string& fallback) {
    if (!fallback.empty() && options.counters != nullptr)
      options.counters->rdma_fallbacks.fetch_add(1, std::memory_order_relaxed);
  };
  for (int turn = 0; turn < kTurnCountMax; ++turn) {
    const FabricChoice choice = peer.fabric_turn.choice();
    if (choice.ordinal > 0) {
      CKV_ASSIGN_OR_RETURN(std::optional<OpenedLane> opened, OpenAsChosen(request, choice));
      if (opened) {
        count_fallback(choice.fallback);
        return *std::move(opened);
      }
    }
    CKV_ASSIGN_OR_RETURN(const bool mine,
                         peer.fabric_turn.Begin(*options.clock, choice.ordinal, request.deadline));
    if (!mine) continue;
    std::optional<FabricChoice> made;
    auto opened = FabricChooser(request, peer, choice).Run(&made);
    if (made) count_fallback(made->fallback);
    peer.fabric_turn.End(std::move(made));
    return opened;
  }
  return absl::UnavailableError("its fabric was chosen again and again while a lane was opened");
}

}  // namespace ckv
