#include "client/holders/session_opener.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

absl::StatusOr<LinkSession> SessionOpening::Open() {
  const SessionOrder& order = order_;
  Clock& clock = *order.options->clock;
  const Instant now = clock.Now();
  if (order.peer->avoidance.until() > now)
    return absl::UnavailableError("did not answer another session");
  const Instant deadline = now + std::min(kTimeout, order.options->connect_timeout);
  CKV_ASSIGN_OR_RETURN(LinkSession session, OpenLinkSession({order.options, order.peers, order.peer,
                                                             &order.geometry, order.tenant},
                                                            deadline));
  // The call that needs a chunk resolves it if this did not, and returns the error.
  ResolveIn(session, order.ids, deadline).IgnoreError();
  return session;
}

void SessionOpening::Run() {
  Clock& clock = *order_.options->clock;
  order_.old.Close(clock);
  if (state_.load() == State::kAbandoned) return;
  result_ = Open();
  const absl::Status& status = result_.status();
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    const Instant now = clock.Now();
    if (order_.peer->avoidance.until() <= now) order_.peers->Avoid(*order_.peer, now, std::nullopt);
    Log().debug("{}: {}", order_.peer->Describe(), status.ToString());
  }
  State pending = State::kPending;
  if (!state_.compare_exchange_strong(pending, State::kDone) && result_.ok()) result_->Close(clock);
}

std::optional<absl::StatusOr<LinkSession>> SessionOpening::Take() {
  if (state_.load() != State::kDone) return std::nullopt;
  state_.store(State::kTaken);
  return std::move(result_);
}

void SessionOpening::Abandon() {
  State pending = State::kPending;
  if (state_.compare_exchange_strong(pending, State::kAbandoned)) return;
  state_.store(State::kAbandoned);
  if (result_.ok()) result_->Close(*order_.options->clock);
}

SessionOpener::~SessionOpener() {
  Thread thread;
  std::deque<std::shared_ptr<SessionOpening>> dropped;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    dropped.swap(queue_);
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

std::shared_ptr<SessionOpening> SessionOpener::Begin(SessionOrder order) {
  // If it is refused, it closes the old session after the lock has been released.
  auto opening = std::make_shared<SessionOpening>(std::move(order));
  absl::MutexLock lock(&mu_);
  if (queue_.size() >= kQueueMax || stopping_) return nullptr;
  if (!thread_.joinable()) {
    try {
      thread_ = Thread([this] { Run(); });
    } catch (const std::system_error& error) {
      Log().warn("no thread to open sessions, so calls open them: {}", error.what());
      return nullptr;
    }
  }
  queue_.push_back(opening);
  return opening;
}

void SessionOpener::Run() {
  while (true) {
    std::shared_ptr<SessionOpening> next;
    {
      absl::MutexLock lock(&mu_);
      clock_.Await(mu_, absl::Condition(this, &SessionOpener::HasWork), kInstantMax);
      if (stopping_) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    next->Run();
  }
}

}  // namespace ckv
