// The thread's loop (Run) waits for a change or a renewal, and makes one report (ReportOnce). The
// report is made without the lock: what changes meanwhile is sent by the next one.

#include "client/grpc/load_reporter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/rank_convert.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// A lease that a directory gives is renewed every third of it. A shorter one than this is a mistake
// there, and must not become a loop here.
constexpr Duration kReportPauseMin = std::chrono::milliseconds(10);

LoadNotice NoticeOf(const LoadReporterOptions& options, const ServingLoad& load) {
  LoadNotice notice;
  notice.name = options.name;
  notice.address = options.address;
  notice.host = options.host;
  notice.ttl = options.ttl;
  notice.load = load;
  return notice;
}

}  // namespace

LoadReporter::LoadReporter(const LoadReporterOptions& options)
    : options_(options),
      directory_(options.addresses, options.clock),
      backoff_(options.backoff_min) {}

LoadReporter::~LoadReporter() {
  Thread thread;
  bool reported = false;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  if (!thread.joinable()) return;
  thread.join();
  LoadNotice notice;
  {
    absl::MutexLock lock(&mu_);
    reported = report_.report_count > 0;
    notice = NoticeOf(options_, load_);
  }
  if (!reported) return;
  notice.leaves = true;
  v1::ReportLoadReply reply;
  // Not answered: the lease ends by itself.
  directory_
      .Call(&DirectoryCaller::Stub::ReportLoad, "ReportLoad", ToProto(notice), &reply,
            options_.clock->Now() + options_.timeout)
      .IgnoreError();
}

absl::Status LoadReporter::Set(const ServingLoad& load) {
  CKV_RETURN_IF_ERROR(directory_.address_status());
  CKV_RETURN_IF_ERROR(ValidateNotice(NoticeOf(options_, load)));
  absl::MutexLock lock(&mu_);
  const bool is_first = !thread_.joinable();
  load_changed_ = load_changed_ || is_first || load != load_;
  load_ = load;
  if (is_first && !stopping_) thread_ = Thread([this] { Run(); });
  return absl::OkStatus();
}

void LoadReporter::SetCached(std::vector<ChunkPrefix> cached) {
  absl::MutexLock lock(&mu_);
  cached_given_ = true;
  SetCachedLocked(std::move(cached));
}

void LoadReporter::SetCachedLocked(std::vector<ChunkPrefix> cached) {
  cached.resize(std::min(cached.size(), kDigestChunkCountMax));
  cached_changed_ = cached_changed_ || cached != cached_;
  cached_ = std::move(cached);
}

void LoadReporter::ListCached() {
  if (options_.list_cached == nullptr) return;
  std::vector<ChunkPrefix> cached = options_.list_cached();
  absl::MutexLock lock(&mu_);
  if (!cached_given_) SetCachedLocked(std::move(cached));
}

void LoadReporter::Run() {
  Instant renew = options_.clock->Now();
  Instant earliest = renew;
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      // A change does not wait for the renewal, but for the pause after the last report.
      options_.clock->Await(mu_, absl::Condition(this, &LoadReporter::IsAwake), renew);
      options_.clock->Await(mu_, absl::Condition(&stopping_), earliest);
      if (stopping_) return;
    }
    const Instant sent = options_.clock->Now();
    renew = ReportOnce();
    absl::MutexLock lock(&mu_);
    earliest = report_.last_error.ok() ? sent + options_.period_min : renew;
  }
}

Instant LoadReporter::ReportOnce() {
  ListCached();
  LoadNotice notice;
  {
    absl::MutexLock lock(&mu_);
    notice = NoticeOf(options_, load_);
    if (cached_changed_) notice.cached = cached_;
    load_changed_ = cached_changed_ = false;
    is_sending_ = true;
  }
  const Instant sent = options_.clock->Now();
  v1::ReportLoadReply reply;
  const absl::Status status = directory_.Call(&DirectoryCaller::Stub::ReportLoad, "ReportLoad",
                                              ToProto(notice), &reply, sent + options_.timeout);
  absl::MutexLock lock(&mu_);
  is_sending_ = false;
  if (status.ok() != report_.last_error.ok()) {
    Log().info("load of {}: {}", options_.name,
               status.ok() ? "the directory takes it again" : std::string(status.message()));
  }
  report_.last_error = status;
  if (!status.ok()) {
    ++report_.failure_count;
    // Sent again with the next report.
    load_changed_ = true;
    cached_changed_ = cached_changed_ || notice.cached.has_value();
    const Instant next = options_.clock->Now() + backoff_;
    backoff_ = std::min(backoff_ * 2, kRenewMax);
    return next;
  }
  backoff_ = options_.backoff_min;
  const LoadLease lease = FromProto(reply);
  ++report_.report_count;
  report_.digest_count = lease.digest_count;
  // A directory that has begun to lead has no digests.
  if (lease.digest_wanted && !notice.cached && !cached_.empty()) cached_changed_ = true;
  return sent + std::clamp(lease.ttl / 3, kReportPauseMin, kRenewMax);
}

LoadReporter::Report LoadReporter::report() const {
  absl::MutexLock lock(&mu_);
  return report_;
}

absl::Status LoadReporter::AwaitReported(Instant deadline) {
  absl::MutexLock lock(&mu_);
  if (options_.clock->Await(mu_, absl::Condition(this, &LoadReporter::IsReported), deadline))
    return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrFormat("load of %s: not reported: %s", options_.name,
                      report_.last_error.ok() ? "the directory has not answered"
                                              : std::string(report_.last_error.message())));
}

}  // namespace ckv
