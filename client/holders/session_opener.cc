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
  // A holder that went silent meanwhile is not reached. After any other error, the call that needs
  // a chunk resolves it, and returns the error.
  const absl::Status resolved = ResolveIn(session, order.ids, deadline);
  if (absl::IsUnavailable(resolved) || absl::IsDeadlineExceeded(resolved)) {
    session.Close(clock);
    return resolved;
  }
  return session;
}

void SessionOpening::Run() {
  Clock& clock = *order_.options->clock;
  {
    absl::MutexLock lock(&mu_);
    if (state_ == State::kWaiting) state_ = State::kRunning;
    if (state_ != State::kRunning) return;
  }
  // A holder that calls avoid is not notified of the end of the old session: that would take time
  // from the orders for other holders.
  LinkSession old = std::move(order_.old);
  if (order_.peer->avoidance.until() <= clock.Now()) old.Close(clock);
  auto result = Open();
  absl::MutexLock lock(&mu_);
  if (state_ == State::kAbandoned) {
    if (result.ok()) result->Close(clock);
    return;
  }
  if (absl::IsUnavailable(result.status()) || absl::IsDeadlineExceeded(result.status())) {
    const Instant now = clock.Now();
    if (order_.peer->avoidance.until() <= now) order_.peers->Avoid(*order_.peer, now, std::nullopt);
    Log().debug("{}: {}", order_.peer->Describe(), result.status().ToString());
  }
  result_ = std::move(result);
  state_ = State::kDone;
}

bool SessionOpening::AwaitIfRunning(Instant deadline) {
  absl::MutexLock lock(&mu_);
  if (state_ == State::kRunning)
    order_.options->clock->Await(mu_, absl::Condition(this, &SessionOpening::HasRun), deadline);
  return state_ == State::kDone;
}

std::optional<absl::StatusOr<LinkSession>> SessionOpening::Take() {
  absl::MutexLock lock(&mu_);
  if (state_ != State::kDone) return std::nullopt;
  state_ = State::kTaken;
  return std::move(result_);
}

void SessionOpening::Abandon() {
  absl::MutexLock lock(&mu_);
  if (state_ == State::kDone && result_.ok()) result_->Close(*order_.options->clock);
  state_ = State::kAbandoned;
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

bool SessionOpener::IsReady() {
  absl::MutexLock lock(&mu_);
  return IsReadyLocked();
}

bool SessionOpener::IsReadyLocked() {
  if (queue_.size() >= kQueueMax || stopping_) return false;
  if (thread_.joinable()) return true;
  try {
    thread_ = Thread([this] { Run(); });
  } catch (const std::system_error& error) {
    if (!std::exchange(is_reported_, true))
      Log().warn("no thread to open sessions, so calls open them: {}", error.what());
    return false;
  }
  return true;
}

std::shared_ptr<SessionOpening> SessionOpener::Begin(SessionOrder order) {
  // If it is refused, it drops the old session after the lock has been released.
  auto opening = std::make_shared<SessionOpening>(std::move(order));
  absl::MutexLock lock(&mu_);
  if (!IsReadyLocked()) return nullptr;
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
