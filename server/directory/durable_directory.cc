#include "server/directory/durable_directory.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

std::unique_ptr<DurableDirectory> DurableDirectory::OpenShared(const DirectoryOptions& options,
                                                               std::string store) {
  std::unique_ptr<DurableDirectory> directory(new DurableDirectory(options));
  directory->found_.path = std::move(store);
  directory->found_.started = options.clock->Now();
  return directory;
}

std::string DurableDirectory::Refusal() const {
  if (refusal_) return refusal_();
  return log_ == nullptr ? "" : std::string(log_->stats().last_error.message());
}

void DurableDirectory::NoteRead(std::function<std::string()> refusal) {
  refusal_ = std::move(refusal);
  found_.corpus_count = state_.counts().corpus_count;
  found_.is_new = found_.corpus_count == 0;
  found_.took = clock_->Now() - found_.started;
}

absl::StatusOr<std::unique_ptr<DurableDirectory>> DurableDirectory::Open(
    const DirectoryOptions& options, const ChangeLogOptions& log) {
  std::unique_ptr<DurableDirectory> directory(new DurableDirectory(options));
  Found& found = directory->found_;
  found.is_new = true;
  found.started = options.clock->Now();
  if (log.path.empty()) {
    Log().info(
        "the directory keeps corpora in memory: after a restart it has only those that holders "
        "report; a folder (directory.path) keeps all");
    directory->state_.changes().StartInMemory();
    return directory;
  }
  ReplayProgress unseen;
  ChangeLogOptions reported = log;
  if (reported.progress == nullptr) reported.progress = &unseen;
  Instant next = found.started + kProgressPeriod;
  auto opened = ChangeLog::Open(reported, [&](const DirectoryChange& change) {
    if (const Instant now = options.clock->Now(); now >= next) {
      next = now + kProgressPeriod;
      Log().info("reading {}: {} %, {} corpora so far", log.path, reported.progress->percent(),
                 directory->state_.counts().corpus_count);
    }
    return directory->state_.changes().Replay(change);
  });
  if (!opened.ok()) return Annotate(opened.status(), "directory.path");
  directory->log_ = *std::move(opened);
  const LogReplay& replay = directory->log_->replay();
  found.path = log.path;
  found.is_new = replay.is_new;
  found.corpus_count = directory->state_.counts().corpus_count;
  found.record_count = replay.record_count;
  found.took = options.clock->Now() - found.started;
  if (!replay.cut.empty()) Log().warn("{}", replay.cut);
  Log().info("the directory keeps corpora in {}: {}", found.path,
             found.is_new
                 ? std::string("a new folder")
                 : absl::StrFormat("%d corpora read from %d records in %d ms", found.corpus_count,
                                   found.record_count, found.took / std::chrono::milliseconds(1)));
  directory->state_.changes().SetJournal(directory->log_.get(), replay.folder_id);
  directory->log_->Start(&directory->state_.changes());
  return directory;
}

}  // namespace ckv
