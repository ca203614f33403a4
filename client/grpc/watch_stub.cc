#include "client/grpc/watch_stub.h"

#include <algorithm>
#include <utility>

#include "proto/convert.h"

namespace ckv {

WatchStub::WatchStub(const WatchOptions& options, OnChange on_change, OnBreak on_break,
                     OnMember on_member)
    : options_(options),
      started_(options.clock->Now()),
      on_change_(std::move(on_change)),
      on_break_(std::move(on_break)),
      on_member_(std::move(on_member)),
      directory_(options.addresses, options.clock),
      thread_([this] { Run(); }) {}

WatchStub::~WatchStub() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  thread_.join();
}

void WatchStub::Run() {
  Duration pause = options_.pause_min;
  size_t failure_count = 0;  // since the last pause
  bool reported = false;
  while (true) {
    const Instant begin = options_.clock->Now();
    const absl::Status status = WatchOnce();
    const bool was_connected = connected_.exchange(false, std::memory_order_relaxed);
    if (was_connected) {
      // One that ends again and again must not be opened again without a pause.
      if (options_.clock->Now() - begin >= options_.pause_min) failure_count = 0;
      pause = options_.pause_min;
      reported = false;
    }
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
    }
    if (++failure_count < directory_.count()) continue;
    failure_count = 0;
    if (!reported) on_break_(status);
    reported = true;
    absl::MutexLock lock(&mu_);
    if (options_.clock->Await(mu_, absl::Condition(&stopping_), options_.clock->Now() + pause)) {
      return;
    }
    pause = std::min(pause * 2, options_.pause_max);
  }
}

absl::Status WatchStub::WatchOnce() {
  grpc::ClientContext context;  // no deadline: a watch lasts; keep-alive finds a dead peer
  context.set_wait_for_ready(false);
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::CancelledError("stopping");
    context_ = &context;
  }
  v1::WatchRequest request;
  request.set_tenant(options_.tenant);
  request.set_all_tenants(options_.all_tenants);
  if (options_.engine) {
    *request.mutable_engine() = ToProto(*options_.engine);
    request.mutable_engine()->set_started_ago_ms(
        static_cast<uint64_t>((options_.clock->Now() - started_) / std::chrono::milliseconds(1)));
  }
  const DirectoryCaller::Place place = directory_.BeginStream();
  const auto reader = place.stub->Watch(&context, request);
  v1::WatchEvent event;
  while (reader->Read(&event)) Take(event);
  const grpc::Status status = reader->Finish();
  {
    absl::MutexLock lock(&mu_);
    context_ = nullptr;
  }
  const absl::Status ended = directory_.EndStream(place, "Watch", status, context);
  return ended.ok() ? absl::UnavailableError("the directory ended the watch") : ended;
}

void WatchStub::Take(const v1::WatchEvent& event) {
  switch (event.event_case()) {
    case v1::WatchEvent::kSynced:
      connected_.store(true, std::memory_order_relaxed);
      on_change_("");
      break;
    case v1::WatchEvent::kMemberUp:
      if (const auto member = FromProto(event.member_up()); member.ok() && on_member_ != nullptr)
        on_member_(*member);
      break;
    case v1::WatchEvent::kCorpusPublished:
      if (connected()) on_change_(event.corpus_published().name());
      break;
    case v1::WatchEvent::kCorpusDropped:
      if (connected()) on_change_(event.corpus_dropped().name());
      break;
    case v1::WatchEvent::kReplicasChanged:
      if (connected()) on_change_(event.replicas_changed().name());
      break;
    default:
      break;
  }
}

}  // namespace ckv
