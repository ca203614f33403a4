// Measures the constants of holders again once they are doubted.

#pragma once

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/holders/holder_peer.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"

namespace ckv {

// A background thread, off the path of calls. It sleeps until constants are doubted (DoubtCount,
// client/cost/live_window.h), so an idle requester costs nothing. It measures one holder at a
// time. Each holder has a pause between measurements: the constants of a machine that stays loaded
// are doubted again and again.
class Remeasurer {
 public:
  // The limit of one measurement. A holder that answers takes a few ms.
  static constexpr Duration kTimeout = std::chrono::seconds(1);
  // A holder is measured at most once in its pause. The pause starts at kPauseMin and doubles with
  // each measurement, up to kPauseMax. It is reset once the constants were not doubted for
  // kPauseMax.
  static constexpr Duration kPauseMin = std::chrono::milliseconds(100);
  static constexpr Duration kPauseMax = std::chrono::seconds(60);

  // Measures what HolderPeer::Doubted lists. `deadline` is kTimeout from now.
  using Measure = std::function<absl::Status(HolderPeer& peer, Instant deadline)>;
  // All must outlive it.
  Remeasurer(Clock* clock, PeerTable* peers, Measure measure);
  // Waits for a measurement that is under way.
  ~Remeasurer();

  // Starts the thread, if it is not running. Call it after a measurement. If the thread cannot
  // be created, the next call tries again.
  void Start() ABSL_LOCKS_EXCLUDED(mu_);
  // Measures the doubted holders whose pause is over. Returns when the next is due; kInstantMax if
  // none is doubted. The thread calls it; so do tests.
  Instant Step(Instant now);

 private:
  struct Pause {
    Instant until{};
    Duration next = kPauseMin;
  };

  void Run();
  bool stopping() const ABSL_LOCKS_EXCLUDED(mu_);

  Clock& clock_;
  PeerTable& peers_;
  const Measure measure_;
  absl::flat_hash_map<const HolderPeer*, Pause> pauses_;  // used by one thread only
  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
