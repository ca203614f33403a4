#include "transport/verbs/verbs_side_thread.h"

#include <utility>

#include "proto/base/status.h"

namespace ckv {

VerbsSideThread::VerbsSideThread() {
  thread_ = std::thread([this] { RunJobs(); });
}

VerbsSideThread::~VerbsSideThread() { Stop(); }

void VerbsSideThread::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (const auto& [id, source] : sources_) source->closed = true;
  }
  if (thread_.joinable()) thread_.join();
}

VerbsSourceId VerbsSideThread::Open() {
  absl::MutexLock lock(&mu_);
  auto source = std::make_unique<Source>();
  source->closed = stopping_;
  sources_.emplace(++last_source_, std::move(source));
  return {last_source_};
}

void VerbsSideThread::Close(VerbsSourceId source) {
  absl::MutexLock lock(&mu_);
  Source* const known = Find(source.value);
  CKV_CHECK(known != nullptr);  // once
  known->closed = true;
  mu_.Await(absl::Condition(
      +[](Source* s) { return s->job_count == 0; }, known));
  sources_.erase(source.value);
}

bool VerbsSideThread::Ask(VerbsSourceId source, VerbsJob* job) {
  absl::MutexLock lock(&mu_);
  if (Waits(job)) return true;
  Source* const known = Find(source.value);
  if (known == nullptr || known->closed || count_ >= kJobCountMax) return false;
  Push(*known, {source.value, job, nullptr, false});
  return true;
}

void VerbsSideThread::Retire(VerbsSourceId source, std::unique_ptr<VerbsJob> job) {
  {
    absl::MutexLock lock(&mu_);
    Source* const known = Find(source.value);
    // A job that runs or waits to run cannot be destroyed here, whatever the limit. Its source is
    // open or being closed, and waits for this too.
    const bool requested = running_ == job.get() || Waits(job.get());
    if (requested || (known != nullptr && !known->closed && count_ < kJobCountMax)) {
      VerbsJob* const target = job.get();
      Push(*known, {source.value, target, std::move(job), false});
      return;
    }
  }
  job->Hurry();
  job.reset();
}

void VerbsSideThread::RunJobs() {
  Entry entry;
  while (Take(entry)) {
    if (entry.retired != nullptr) {
      if (entry.hurry) entry.retired->Hurry();
      entry.retired.reset();
    } else {
      entry.job->Run();
    }
    NoteDone(entry.source);
  }
}

bool VerbsSideThread::Take(Entry& entry) {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &VerbsSideThread::HasWork));
  if (count_ == 0) return false;
  entry = std::move(entries_[begin_]);
  begin_ = (begin_ + 1) % entries_.size();
  --count_;
  entry.hurry = Find(entry.source)->closed;
  // A destroyed job may leave its address to another.
  running_ = entry.retired != nullptr ? nullptr : entry.job;
  return true;
}

void VerbsSideThread::NoteDone(uint64_t source) {
  absl::MutexLock lock(&mu_);
  running_ = nullptr;
  --Find(source)->job_count;
}

bool VerbsSideThread::Waits(const VerbsJob* job) const {
  for (size_t i = 0; i < count_; ++i) {
    if (entries_[(begin_ + i) % entries_.size()].job == job) return true;
  }
  return false;
}

VerbsSideThread::Source* VerbsSideThread::Find(uint64_t source) const {
  const auto it = sources_.find(source);
  return it == sources_.end() ? nullptr : it->second.get();
}

void VerbsSideThread::Push(Source& source, Entry entry) {
  CKV_CHECK(count_ < entries_.size());
  entries_[(begin_ + count_++) % entries_.size()] = std::move(entry);
  ++source.job_count;
}

}  // namespace ckv
