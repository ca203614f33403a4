// Opens sessions on a thread of its own, for calls that replicas can answer meanwhile.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/holders/link_session.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"
#include "proto/host/thread.h"
#include "proto/ids.h"

namespace ckv {

// A session that one link needs.
struct SessionOrder {
  const LinkOptions* options = nullptr;
  PeerTable* peers = nullptr;
  HolderPeer* peer = nullptr;
  Geometry geometry;
  std::string tenant;
  std::vector<ChunkId> ids;  // their handles are resolved in the new session
  LinkSession old;           // the link's session so far. Run closes it first
};

// One session under way. Its states, which the link's thread and the opener's change:
//   pending    Run ends                 -> done
//   pending    Abandon                  -> abandoned: Run closes what it opens
//   done       Take                     -> taken
//   done       Abandon closes it        -> abandoned
class SessionOpening {
 public:
  // The most time for all steps: a machine that is gone does not refuse a connection.
  static constexpr Duration kTimeout = std::chrono::milliseconds(500);

  explicit SessionOpening(SessionOrder order) : order_(std::move(order)) {}
  // Closes the old session, if Run has not.
  ~SessionOpening() { order_.old.Close(*order_.options->clock); }
  SessionOpening(const SessionOpening&) = delete;
  SessionOpening& operator=(const SessionOpening&) = delete;

  // Opens the session. If the holder is not reached, calls avoid it for a while. If they do so
  // already, because another link's attempt has failed meanwhile, the result is Unavailable.
  void Run();

  // Returns the session or why there is none. Returns nothing before Run has ended, and after Take
  // or Abandon.
  std::optional<absl::StatusOr<LinkSession>> Take();
  // Call instead of Take if the session is not needed any more.
  void Abandon();

 private:
  enum class State : uint8_t { kPending, kDone, kTaken, kAbandoned };

  absl::StatusOr<LinkSession> Open();

  SessionOrder order_;
  absl::StatusOr<LinkSession> result_ = absl::UnknownError("not opened yet");
  std::atomic<State> state_{State::kPending};
};

// Thread-safe. Serves orders one after another: links that open at once to a holder that has just
// started would only wait for each other there. All that the orders name must outlive the opener.
class SessionOpener {
 public:
  // The most orders that wait. A call whose link has no place opens it itself.
  static constexpr size_t kQueueMax = 1024;

  explicit SessionOpener(Clock* clock) : clock_(*clock) {}
  // Drops the orders that wait. Waits for the one under way, at most SessionOpening::kTimeout.
  ~SessionOpener();
  SessionOpener(const SessionOpener&) = delete;
  SessionOpener& operator=(const SessionOpener&) = delete;

  // Starts the thread at the first order. Returns null if the queue is full, or if the process can
  // have no more threads.
  std::shared_ptr<SessionOpening> Begin(SessionOrder order) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); }

  Clock& clock_;
  absl::Mutex mu_;
  std::deque<std::shared_ptr<SessionOpening>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
