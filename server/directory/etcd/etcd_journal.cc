#include "server/directory/etcd/etcd_journal.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Between two tries of a transaction that etcd did not answer.
constexpr Duration kTryPause = std::chrono::milliseconds(100);

absl::Status LeadsNoMore(absl::string_view why) {
  return absl::UnavailableError(absl::StrFormat(
      "this directory leads no more (%s): ask the one that does whether the change was made", why));
}

}  // namespace

EtcdJournal::EtcdJournal(std::unique_ptr<EtcdWriter> writer, std::function<bool()> leads,
                         Clock* clock, ChangeSink* sink)
    : writer_(std::move(writer)),
      leads_(std::move(leads)),
      clock_(*clock),
      sink_(*sink),
      thread_([this] { Run(); }) {}

EtcdJournal::~EtcdJournal() {
  if (thread_.joinable()) End();
}

EtcdIndex EtcdJournal::End() {
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  thread_.join();
  return writer_->index();
}

absl::Status EtcdJournal::Submit(std::shared_ptr<const DirectoryChange> change) {
  absl::MutexLock lock(&mu_);
  CKV_RETURN_IF_ERROR(lost_);
  if (ending_) return LeadsNoMore("it is stopping");
  if (queue_.size() >= kQueuedCountMax)
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d changes wait for etcd: try again later", queue_.size()));
  queue_.push_back(std::move(change));
  return absl::OkStatus();
}

EtcdJournal::Stats EtcdJournal::stats() const {
  absl::MutexLock lock(&mu_);
  return stats_;
}

void EtcdJournal::Run() {
  for (Changes batch = TakeBatch(); !batch.empty(); batch = TakeBatch()) {
    const absl::Status status = Write();
    NoteEnd(batch.size(), status);
    for (const auto& change : batch) sink_.Settle(*change, status);
    if (status.ok()) writer_->Compact(clock_.Now() + kTryMax);
  }
}

EtcdJournal::Changes EtcdJournal::TakeBatch() {
  Changes batch, refused;
  absl::Status why;
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &EtcdJournal::HasWork));
    why = lost_;
    if (why.ok() && ending_) why = LeadsNoMore("it is stopping");
    while (!queue_.empty() && (!why.ok() || writer_->Add(*queue_.front()))) {
      (why.ok() ? batch : refused).push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  for (const auto& change : refused) sink_.Settle(*change, why);
  return batch;
}

absl::Status EtcdJournal::Write() {
  bool is_reported = false;
  while (true) {
    absl::Status status;
    switch (writer_->Flush(clock_.Now() + kTryMax, status)) {
      case EtcdWriter::End::kApplied:
        return absl::OkStatus();
      case EtcdWriter::End::kRefused:
        return status;
      case EtcdWriter::End::kLost:
        return LeadsNoMore(status.message());
      case EtcdWriter::End::kUnknown:
        break;
    }
    if (!leads_()) return LeadsNoMore(status.message());
    {
      absl::MutexLock lock(&mu_);
      ++stats_.retry_count;
      stats_.last_error = status;
    }
    if (!std::exchange(is_reported, true))
      Log().warn("directory: a change waits for etcd: {}", status.ToString());
    clock_.WaitUntil(clock_.Now() + kTryPause);
  }
}

void EtcdJournal::NoteEnd(size_t count, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  stats_.last_error = status;
  if (status.ok()) {
    stats_.change_count += count;
    ++stats_.transaction_count;
    return;
  }
  stats_.refused_count += count;
  // A refusal by etcd concerns these changes only. Without the lead, all later ones fail, too.
  if (absl::IsUnavailable(status)) lost_ = status;
}

}  // namespace ckv
