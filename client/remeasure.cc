#include "client/remeasure.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "proto/base/log.h"

namespace ckv {

Remeasurer::Remeasurer(Clock* clock, PeerTable* peers, Measure measure)
    : clock_(*clock), peers_(*peers), measure_(std::move(measure)) {}

Remeasurer::~Remeasurer() {
  Thread thread;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    thread.swap(thread_);
  }
  peers_.bell().Ring();
  if (thread.joinable()) thread.join();
}

void Remeasurer::Start() {
  absl::MutexLock lock(&mu_);
  if (stopping_ || thread_.joinable()) return;
  try {
    thread_ = Thread([this] { Run(); });
  } catch (const std::system_error& error) {
    Log().warn("no thread to measure holders again: {}", error.what());
  }
}

bool Remeasurer::stopping() const {
  absl::MutexLock lock(&mu_);
  return stopping_;
}

void Remeasurer::Run() {
  // A doubt from before the thread ran has rung the bell.
  for (Instant next = kInstantMax; !stopping(); next = Step(clock_.Now()))
    peers_.bell().Await(clock_, next);
}

Instant Remeasurer::Step(Instant now) {
  Instant next = kInstantMax;
  for (HolderPeer* const peer : peers_.Doubted()) {
    if (stopping()) break;
    Pause& pause = pauses_[peer];
    if (now >= pause.until) {
      if (now - pause.until >= kPauseMax) pause.next = kPauseMin;
      const absl::Status status = measure_(*peer, clock_.Now() + kTimeout);
      const Duration waits = std::exchange(pause.next, std::min(2 * pause.next, kPauseMax));
      pause.until = clock_.Now() + waits;
      if (status.ok()) {
        Log().info("{}: its measured cost was in doubt; measured again", peer->Describe());
        continue;  // a doubt raised since then rings the bell
      }
      Log().debug("{}: measuring it again: {}", peer->Describe(), status.ToString());
    }
    next = std::min(next, pause.until);
  }
  return next;
}

}  // namespace ckv
