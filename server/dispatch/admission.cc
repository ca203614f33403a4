#include "server/dispatch/admission.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

constexpr double kObserveShare = 1.0 / 16;  // the weight of one call in the rate

}  // namespace

absl::Status Admission::Check(const FairQueue& queue, const FairQueue::Flow& flow,
                              const ReadyRequest& ready, Refusal* why) const {
  if (flow.empty()) return absl::OkStatus();
  if (queue.count() >= request_count_max_ || flow.count() >= request_count_max_ / 2) {
    *why = Refusal::kQueueFull;
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d requests wait, %d of this session; this holder's limit is %d, and half "
                        "of it for one session",
                        queue.count(), flow.count(), request_count_max_));
  }
  if (queue.waiting_sessions() == 1) return absl::OkStatus();
  if (QueueUs(queue) > ready.header.deadline_us) {
    *why = Refusal::kNoTime;
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d us are left, and the requests that wait take %d us",
                        ready.header.deadline_us, static_cast<int64_t>(QueueUs(queue))));
  }
  if (queue.work() + ready.work <= work_max_) return absl::OkStatus();
  *why = Refusal::kQueueWork;
  return absl::ResourceExhaustedError(
      absl::StrFormat("%d requests of %d sessions wait, %d multiply-adds; limit %d", queue.count(),
                      queue.waiting_sessions(), queue.work(), work_max_));
}

void Admission::Observe(uint64_t work, Duration elapsed) {
  if (work == 0) return;
  const double now = static_cast<double>(elapsed.count()) / static_cast<double>(work);
  ns_per_work_ = ns_per_work_ == 0 ? now : ns_per_work_ + (now - ns_per_work_) * kObserveShare;
}

uint32_t Admission::RetryAfterUs(const FairQueue& queue) const {
  return static_cast<uint32_t>(
      std::clamp(QueueUs(queue), double{kRetryAfterUsMin}, double{kRetryAfterUsMax}));
}

}  // namespace ckv
