// A requester's calls about loads: reports of its own, and rankings.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/grpc/directory_caller.h"
#include "client/grpc/load_reporter.h"
#include "client/rank/serving_load.h"

namespace ckv::c {

// Thread-safe.
class LoadLink {
 public:
  // `list_cached` returns the digest until a report has one (LoadReporterOptions).
  LoadLink(std::string directory, std::string name,
           std::function<std::vector<ChunkPrefix>()> list_cached)
      : directory_(std::move(directory)),
        name_(std::move(name)),
        list_cached_(std::move(list_cached)),
        caller_(directory_, Clock::Real()) {}

  // Passes on a report. The first one makes the reporter.
  //   InvalidArgument     as LoadReporter::Set; or the address or the host is not that of the
  //                       first report.
  absl::Status Report(const LoadNotice& notice) ABSL_LOCKS_EXCLUDED(mu_);
  DirectoryCaller& caller() { return caller_; }

 private:
  const std::string directory_;
  const std::string name_;
  const std::function<std::vector<ChunkPrefix>()> list_cached_;
  DirectoryCaller caller_;

  absl::Mutex mu_;
  std::string address_ ABSL_GUARDED_BY(mu_), host_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<LoadReporter> reporter_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv::c
