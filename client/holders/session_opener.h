// Opens sessions on a thread of its own, for calls that replicas can answer meanwhile.

#pragma once

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
//   waiting    Run                      -> running
//   running    Run ends                 -> done
//   waiting    Abandon                  -> abandoned: Run opens nothing
//   running    Abandon                  -> abandoned: Run closes what it opens
//   done       Take                     -> taken
//   done       Abandon closes it        -> abandoned
class SessionOpening {
 public:
  // The most time for all steps: a machine that is gone does not refuse a connection.
  static constexpr Duration kTimeout = std::chrono::milliseconds(500);

  explicit SessionOpening(SessionOrder order) : order_(std::move(order)) {}
  // Drops the old session's lane, if Run has not closed that. The holder then ends the session.
  ~SessionOpening() = default;
  SessionOpening(const SessionOpening&) = delete;
  SessionOpening& operator=(const SessionOpening&) = delete;

  // Opens the session. If the holder is not reached, calls avoid it for a while. If they do so
  // already, because another link's attempt has failed meanwhile, the result is Unavailable.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until Run has ended, if it has begun. Returns false if it has not begun or ended in time.
  bool AwaitIfRunning(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the session or why there is none. Returns nothing before Run has ended, and after Take
  // or Abandon.
  std::optional<absl::StatusOr<LinkSession>> Take() ABSL_LOCKS_EXCLUDED(mu_);
  // Call instead of Take if the session is not needed any more.
  void Abandon() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State : uint8_t { kWaiting, kRunning, kDone, kTaken, kAbandoned };

  absl::StatusOr<LinkSession> Open();
  bool HasRun() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return state_ != State::kRunning; }

  SessionOrder order_;  // used by Run alone, once it has begun
  absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kWaiting;
  absl::StatusOr<LinkSession> result_ ABSL_GUARDED_BY(mu_) = absl::UnknownError("not opened yet");
};

// Thread-safe. Serves orders one after another: links that open at once to a holder that has just
// started would only wait for each other there. All that the orders name must outlive the opener.
class SessionOpener {
 public:
  // The most orders that wait. A call whose link has no place opens it itself.
  static constexpr size_t kQueueMax = 1024;

  explicit SessionOpener(Clock* clock) : clock_(*clock) {}
  // Drops the orders that wait. Waits for the one under way: at most SessionOpening::kTimeout, and
  // kCloseTimeout (client/holders/lane_opener.h) for each session that it ends.
  ~SessionOpener();
  SessionOpener(const SessionOpener&) = delete;
  SessionOpener& operator=(const SessionOpener&) = delete;

  // Returns false if Begin would return null. Starts the thread the first time.
  bool IsReady() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns null if the queue is full, or if the process can have no more threads.
  std::shared_ptr<SessionOpening> Begin(SessionOrder order) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool IsReadyLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); }

  Clock& clock_;
  absl::Mutex mu_;
  std::deque<std::shared_ptr<SessionOpening>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool is_reported_ ABSL_GUARDED_BY(mu_) = false;  // that there is no thread
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
