// Follows the directory's changes, so that what a requester remembers is not stale for long.

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "proto/clock.h"

namespace ckv {

struct WatchOptions {
  std::string address;  // of the directory
  std::string tenant;
  bool all_tenants = false;  // corpora of every tenant: for whoever keeps them for all
  Clock* clock = Clock::Real();
  Duration pause_min = std::chrono::milliseconds(100);  // between two tries; doubles
  Duration pause_max = std::chrono::seconds(2);
};

// Owns one thread, which watches and reconnects until destroyed.
class WatchStub {
 public:
  // A corpus that was published or dropped, or has other leased members; an empty name after every
  // (re)connection, since changes may have been missed. Called on the watch's thread.
  using OnChange = std::function<void(std::string_view corpus)>;
  // The watch broke; it will be tried again. Called once a break, not once a try.
  using OnBreak = std::function<void(const absl::Status& status)>;

  WatchStub(const WatchOptions& options, OnChange on_change, OnBreak on_break);
  ~WatchStub();
  WatchStub(const WatchStub&) = delete;
  WatchStub& operator=(const WatchStub&) = delete;

  // Whether the directory's whole state has been seen and the stream is up.
  bool connected() const { return connected_.load(std::memory_order_relaxed); }

 private:
  void Run();
  // One stream, until it ends.
  absl::Status WatchOnce() ABSL_LOCKS_EXCLUDED(mu_);
  void Take(const v1::WatchEvent& event);

  const WatchOptions options_;
  const OnChange on_change_;
  const OnBreak on_break_;
  const std::unique_ptr<v1::DirectoryService::StubInterface> stub_;
  std::atomic<bool> connected_{false};  // a hint for people; orders nothing

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // of the stream that is up
  std::thread thread_;
};

}  // namespace ckv
