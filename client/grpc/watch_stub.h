// Follows the directory's changes, so that a requester's copies do not stay stale for long.

#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "client/grpc/directory_caller.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/host/thread.h"
#include "proto/process_facts.h"

namespace ckv {

struct WatchOptions {
  std::string addresses;  // the directory's, as for DirectoryCaller
  std::string tenant;
  // Watches the corpora of every tenant, for a process that serves them all.
  bool all_tenants = false;
  // The facts that the directory lists while the watch is up; if unset, none. Their
  // `started_ago_ms` counts from the constructor of WatchStub.
  std::optional<EngineFacts> engine = {};
  Clock* clock = Clock::Real();
  // The pause between two tries, which doubles. With several directories, between two rounds: all
  // are tried at once, first the one that leads.
  Duration pause_min = std::chrono::milliseconds(100);
  Duration pause_max = std::chrono::seconds(2);
};

// Owns one thread, which watches and reconnects until destroyed.
class WatchStub {
 public:
  // Called on the watch's thread for each corpus that was published or dropped, or whose leased
  // members changed. The name is empty after every (re)connection, because changes may have been
  // missed.
  using OnChange = std::function<void(std::string_view corpus)>;
  // Called on the watch's thread for each member that is up: for all of them after a
  // (re)connection, then for each that registers. It may be empty.
  using OnMember = std::function<void(const Member& member)>;
  // Called once when the watch breaks, not at every retry. With several directories, only if none
  // of them continues it at once.
  using OnBreak = std::function<void(const absl::Status& status)>;

  WatchStub(const WatchOptions& options, OnChange on_change, OnBreak on_break,
            OnMember on_member = nullptr);
  ~WatchStub();
  WatchStub(const WatchStub&) = delete;
  WatchStub& operator=(const WatchStub&) = delete;

  // Returns true if the directory's whole state has been seen and the stream is up.
  bool connected() const { return connected_.load(std::memory_order_relaxed); }

 private:
  void Run();
  // Runs one stream until it ends.
  absl::Status WatchOnce() ABSL_LOCKS_EXCLUDED(mu_);
  void Take(const v1::WatchEvent& event);

  const WatchOptions options_;
  const Instant started_;
  const OnChange on_change_;
  const OnBreak on_break_;
  const OnMember on_member_;
  DirectoryCaller directory_;
  std::atomic<bool> connected_{false};  // a hint for people; orders nothing

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // the stream that is up, or null
  Thread thread_;
};

}  // namespace ckv
