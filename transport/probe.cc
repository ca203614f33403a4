// Probe, in order: checks the options; warms the lane up with echoes of headers; times more of
// them; then times echoes of full slots. Each echo waits for its own reply: it spins at first, then
// sleeps on the lane's event.

#include "transport/probe.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"
#include "transport/wire.h"

namespace ckv {
namespace {

constexpr uint32_t kRequestHeaderBytes = sizeof(RequestHeader);
constexpr uint32_t kReplyHeaderBytes = sizeof(ReplyHeader);
// An echo spins for this time, so that it measures the fabric and not the scheduler. A wake-up
// takes 60 to 100 us, at most a twentieth of a longer round trip. A holder that is cut off must not
// cost a processor until the deadline.
constexpr Duration kSpinMax = std::chrono::milliseconds(2);
// A sleep's end if no event ends it (LaneWait::kSleepMax).
constexpr std::chrono::nanoseconds kSleepMax = std::chrono::milliseconds(10);
constexpr uint32_t kRoundCountMax = 1u << 20;  // a probe keeps one duration a round

// Differs from the ids of all other probes of this process, and of calls, which count from 1: a
// late duplicate of a reply to an earlier probe is not taken for the awaited one.
uint64_t NextProbeId() {
  static std::atomic<uint64_t> count{0};
  return (uint64_t{1} << 63) + count.fetch_add(1, std::memory_order_relaxed);
}

class Prober {
 public:
  Prober(RequestLane& lane, Clock& clock, const ProbeOptions& options)
      : lane_(lane), clock_(clock), options_(options) {}

  // Makes one echo of `body_bytes` and writes its round trip to `elapsed`. Posts nothing after the
  // deadline: over a slow fabric each further echo would take minutes.
  absl::Status Echo(uint32_t body_bytes, Duration& elapsed) {
    const Instant start = clock_.Now();
    if (start >= options_.deadline) return absl::DeadlineExceededError("probe: no time is left");
    const std::optional<uint32_t> slot = lane_.Acquire();
    if (!slot) return absl::FailedPreconditionError("probe: the lane has no free slot");
    request_id_ = NextProbeId();
    RequestHeader header;
    header.kind = WireKind::kProbe;
    header.request_id = request_id_;
    header.epoch = options_.epoch;
    header.session = options_.session;
    header.body_bytes = body_bytes;
    header.deadline_us = RemainingUs(options_.deadline, start);
    EncodeHeader(header, lane_.request(*slot));
    CKV_RETURN_IF_ERROR(lane_.Post(*slot, kRequestHeaderBytes + body_bytes));
    absl::Status status = Await(*slot, start);
    elapsed = clock_.Now() - start;
    return status;
  }

 private:
  absl::Status Await(uint32_t slot, Instant start) {
    while (true) {
      Completion completion;
      if (lane_.Poll({&completion, 1}) == 1) {
        bool mine = false;
        absl::Status status = Judge(slot, completion, mine);
        if (!mine && status.ok()) continue;
        if (mine) lane_.Release(slot);
        return status;
      }
      CKV_RETURN_IF_ERROR(lane_.status());
      const Instant now = clock_.Now();
      if (now >= options_.deadline) {
        lane_.Abandon(slot);
        return absl::DeadlineExceededError("probe: no reply in time");
      }
      if (now - start >= kSpinMax || Platform::Simulated() != nullptr) Sleep();
    }
  }

  void Sleep() {
    const int fd = lane_.event_fd();
    if (fd < 0) return YieldProcessor();
    if (!lane_.Arm()) return;
    pollfd one = {fd, POLLIN, 0};
    PollFds({&one, 1}, {0, kSleepMax.count()});
    lane_.Disarm();
  }

  absl::Status Judge(uint32_t slot, const Completion& completion, bool& mine) {
    const std::span<const std::byte> bytes = lane_.reply(completion.slot).first(completion.bytes);
    if (completion.slot != slot) return absl::OkStatus();
    const absl::StatusOr<ReplyHeader> header = DecodeReplyHeader(bytes);
    // It may be a duplicate, so the slot is not released. The caller closes the lane.
    if (!header.ok()) return header.status();
    // A duplicate of an earlier reply is not ours, and neither is its slot (I1).
    mine = header->request_id == request_id_;
    if (!mine) return absl::OkStatus();
    ExpectedReply expected;
    expected.request_id = request_id_;
    expected.kind = WireKind::kProbe;
    return CheckReply(*header, bytes.subspan(sizeof(ReplyHeader)), expected);
  }

  RequestLane& lane_;
  Clock& clock_;
  const ProbeOptions& options_;
  uint64_t request_id_ = 0;
};

// Sorts, and returns the smallest value that is at least as large as `fraction` of them.
double QuantileUs(std::vector<Duration>& values, double fraction) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(fraction * static_cast<double>(values.size()));
  const Duration value = values[std::min(rank, values.size() - 1)];
  return static_cast<double>(value.count()) / 1e3;
}

absl::Status Repeat(Prober& prober, uint32_t count, uint32_t body_bytes,
                    std::vector<Duration>& elapsed) {
  elapsed.assign(count, Duration(0));
  for (Duration& one : elapsed) CKV_RETURN_IF_ERROR(prober.Echo(body_bytes, one));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProbeResult> Probe(RequestLane& lane, Clock& clock, const ProbeOptions& options) {
  const LaneShape& shape = lane.shape();
  if (shape.request_bytes_max < kRequestHeaderBytes || shape.reply_bytes_max < kReplyHeaderBytes) {
    return absl::FailedPreconditionError("probe: the lane's slots hold no header");
  }
  if (options.round_count == 0 || options.round_count > kRoundCountMax ||
      options.bandwidth_round_count > kRoundCountMax || options.warmup_count > kRoundCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("probe: %d rounds, must be 1 to %d", options.round_count, kRoundCountMax));
  }
  Prober prober(lane, clock, options);
  ProbeResult result;
  std::vector<Duration> elapsed;
  CKV_RETURN_IF_ERROR(Repeat(prober, options.warmup_count, 0, elapsed));
  CKV_RETURN_IF_ERROR(Repeat(prober, options.round_count, 0, elapsed));
  result.t_probe_us_p50 = QuantileUs(elapsed, 0.5);
  if (options.bandwidth_round_count == 0) return result;

  const uint32_t body_bytes = shape.request_bytes_max - kRequestHeaderBytes;
  // The first one touches the slot's pages and grows the kernel's buffers.
  CKV_RETURN_IF_ERROR(Repeat(prober, 1, body_bytes, elapsed));
  CKV_RETURN_IF_ERROR(Repeat(prober, options.bandwidth_round_count, body_bytes, elapsed));
  const double echo_us = QuantileUs(elapsed, 0.5) - result.t_probe_us_p50;
  const double bytes =
      double{1} * body_bytes + std::min(body_bytes, shape.reply_bytes_max - kReplyHeaderBytes);
  if (echo_us > 0) result.bandwidth_bytes_per_s = bytes / (echo_us * 1e-6);
  return result;
}

}  // namespace ckv
