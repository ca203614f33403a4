// A directory's state and, if it has a folder, the log that makes it durable. If
// several directories share a state, server/directory/etcd makes it durable instead.

#pragma once

#include <functional>
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

  // The state of a directory that is one of several. `store` is where they keep it, for people.
  // Give it to EtcdDirectory, and then call NoteRead.
  static std::unique_ptr<DurableDirectory> OpenShared(const DirectoryOptions& options,
                                                      std::string store);
  // Call when the start has read the state. `refusal` returns why the last change was refused, or
  // "" after a success; any thread may call it.
  void NoteRead(std::function<std::string()> refusal);

  static constexpr Duration kProgressPeriod = std::chrono::seconds(5);

  DirectoryState& state() { return state_; }
  // Returns the log, or null if the state is in memory only.
  ChangeLog* log() { return log_.get(); }

  // Returns why the last change was refused; "" after a success, and for a state in memory only.
  std::string Refusal() const;

  // The results of the start.
  struct Found {
    std::string path;           // "" if in memory only; of a shared state "etcd://..."
    bool is_new = false;        // the folder was empty, or there is none
    uint64_t corpus_count = 0;  // read from the folder
    uint64_t record_count = 0;
    Instant started;
    Duration took{0};
  };
  const Found& found() const { return found_; }

 private:
  explicit DurableDirectory(const DirectoryOptions& options)
      : clock_(options.clock), state_(options) {}

  Clock* const clock_;
  DirectoryState state_;
  std::function<std::string()> refusal_;  // set for a shared state
  std::unique_ptr<ChangeLog> log_;        // its threads use the state
  Found found_;
};

}  // namespace ckv
