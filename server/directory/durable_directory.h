// A directory's state and, if it has a folder, the log that makes it durable.

#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/directory/directory_state.h"
#include "server/directory/log/change_log.h"

namespace ckv {

// One thread opens and destroys it. The state is thread-safe; destroy it only when no thread uses
// the state.
class DurableDirectory {
 public:
  // Opens the folder of `log`, replays it, and logs the result in one line. A long replay logs its
  // progress every kProgressPeriod. If the path is empty, the state is in memory only, and the line
  // reports that.
  //   Errors of LogFolder::Open; they begin with "directory.path: ".
  static absl::StatusOr<std::unique_ptr<DurableDirectory>> Open(const DirectoryOptions& options,
                                                                const ChangeLogOptions& log);

  static constexpr Duration kProgressPeriod = std::chrono::seconds(5);

  DirectoryState& state() { return state_; }
  // Returns the log, or null if the state is in memory only.
  ChangeLog* log() { return log_.get(); }

  // The results of the start.
  struct Found {
    std::string path;           // "" if in memory only
    bool is_new = false;        // the folder was empty, or there is none
    uint64_t corpus_count = 0;  // read from the folder
    uint64_t record_count = 0;
    Instant started;
    Duration took{0};
  };
  const Found& found() const { return found_; }

 private:
  explicit DurableDirectory(const DirectoryOptions& options) : state_(options) {}

  DirectoryState state_;
  std::unique_ptr<ChangeLog> log_;  // its threads use the state
  Found found_;
};

}  // namespace ckv
