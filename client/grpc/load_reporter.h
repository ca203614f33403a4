// Reports a requester's load to the directory, on a thread of its own, so that Rank has it.
//
//   ckv::LoadReporter reporter({.addresses = "10.0.0.1:7400", .name = "engine-0",
//                               .address = "10.0.0.7:8000"});
//   reporter.Set(load);  // after each step; does not wait
//   reporter.SetCached(prefixes);

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/grpc/directory_caller.h"
#include "client/rank/serving_load.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"

namespace ckv {

struct LoadReporterOptions {
  std::string addresses;  // the directory's, as for DirectoryCaller
  std::string name;
  std::string address;    // host:port at which routers reach the requester
  std::string host = {};  // as the network oracle names it; if empty, that of `address`
  Duration ttl{0};        // the lease's; 0 takes the directory's default
  Clock* clock = Clock::Real();
  Duration timeout = std::chrono::seconds(1);  // the limit of one report
  // The pause between two reports whose loads differ. An engine's step takes some 10 ms, and a
  // ranking errs by the requests of one pause.
  Duration period_min = std::chrono::milliseconds(100);
  // The pause after a failure, which doubles up to a third of the lease.
  Duration backoff_min = std::chrono::milliseconds(100);
  // Returns the digest. Called before each report on the reporter's thread, until SetCached gives
  // one. If null, the digest is empty until then.
  std::function<std::vector<ChunkPrefix>()> list_cached = {};
};

// Thread-safe. The thread begins with the first Set. It renews the lease after each third of it,
// and at least each kRenewMax, with the last load. An idle engine does not step, and is the best
// candidate.
class LoadReporter {
 public:
  static constexpr Duration kRenewMax = std::chrono::seconds(1);

  explicit LoadReporter(const LoadReporterOptions& options);
  // Ends the lease and joins the thread. Waits at most twice the timeout.
  ~LoadReporter();
  LoadReporter(const LoadReporter&) = delete;
  LoadReporter& operator=(const LoadReporter&) = delete;

  // Sets the load. A change is sent after `period_min` at the latest.
  //   InvalidArgument     the name or the address is malformed, or a number is out of its limits.
  absl::Status Set(const ServingLoad& load) ABSL_LOCKS_EXCLUDED(mu_);
  // Replaces the digest. Sends at most kDigestChunkCountMax of them, the first ones.
  void SetCached(std::vector<ChunkPrefix> cached) ABSL_LOCKS_EXCLUDED(mu_);

  struct Report {
    uint64_t report_count = 0;  // that the directory took
    uint64_t failure_count = 0;
    uint32_t digest_count = 0;  // chunks of the digest that count at the directory
    absl::Status last_error;    // the last report's; OK after a success
  };
  Report report() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the directory has taken the last load and digest.
  //   DeadlineExceeded    with the last error.
  absl::Status AwaitReported(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Makes one report, and returns when the next renewal is due.
  Instant ReportOnce() ABSL_LOCKS_EXCLUDED(mu_);
  void SetCachedLocked(std::vector<ChunkPrefix> cached) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the digest of options_.list_cached, unless SetCached was called.
  void ListCached() ABSL_LOCKS_EXCLUDED(mu_);
  bool IsAwake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || load_changed_ || cached_changed_;
  }
  bool IsReported() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !load_changed_ && !cached_changed_ && !is_sending_;
  }

  const LoadReporterOptions options_;
  DirectoryCaller directory_;

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool is_sending_ ABSL_GUARDED_BY(mu_) = false;
  bool load_changed_ ABSL_GUARDED_BY(mu_) = false;
  bool cached_changed_ ABSL_GUARDED_BY(mu_) = false;
  bool cached_given_ ABSL_GUARDED_BY(mu_) = false;  // by SetCached
  ServingLoad load_ ABSL_GUARDED_BY(mu_);
  std::vector<ChunkPrefix> cached_ ABSL_GUARDED_BY(mu_);
  Report report_ ABSL_GUARDED_BY(mu_);
  Duration backoff_ ABSL_GUARDED_BY(mu_);
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
