// Lead and Follow run on the election's thread, one at a time. The order in each makes the tables
// agree with etcd: before it leads, they have everything up to the leader's own key, after which no
// earlier leader can write; when it follows again, the mirror goes on from the last transaction
// that surely was applied, and so sees one whose outcome was unknown. If a change of a member was
// not surely applied, the mirror reads everything again.

#include "server/directory/etcd/etcd_directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
EtcdDirectory::EtcdDirectory(const EtcdStore& store, Clock* clock, DirectoryState* state)
    : clock_(*clock),
      state_(*state),
      layout_(store.prefix),
      watching_(store.endpoints, clock),
      electing_(store.endpoints, clock),
      calling_(store.endpoints, clock),
      mirror_(&watching_, layout_, clock, &state->changes()) {}

absl::StatusOr<std::unique_ptr<EtcdDirectory>> EtcdDirectory::Open(const EtcdStore& store,
                                                                   Clock* clock,
                                                                   DirectoryState* state,
                                                                   Instant deadline) {
  state->changes().StartFollowing();
  std::unique_ptr<EtcdDirectory> directory(new EtcdDirectory(store, clock, state));
  const Instant begin = clock->Now();
  const absl::Status opened = directory->mirror_.Open(deadline);
  if (!opened.ok())
    return Annotate(opened, absl::StrFormat("etcd at %s", absl::StrJoin(store.endpoints, ",")));
  Log().info("the directory shares its state in etcd ({}): {} corpora read in {} ms",
             absl::StrJoin(store.endpoints, ","), state->counts().corpus_count,
             (clock->Now() - begin) / std::chrono::milliseconds(1));
  return directory;
}

void EtcdDirectory::Start(const std::string& address) {
  election_ = std::make_unique<LeaderElection>(
      LeaderElection::Options{.key = layout_.Leader(), .address = address}, &electing_, &clock_,
      this);
}

void EtcdDirectory::End() {
  if (election_ == nullptr) return;
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  state_.changes().SaveMembers(clock_.Now() + kSaveMax);
  election_.reset();
}

EtcdDirectory::~EtcdDirectory() { End(); }

absl::Status EtcdDirectory::Lead(int64_t fence, const LeaderElection& election) {
  const Instant deadline = election.LeadsUntil();
  CKV_ASSIGN_OR_RETURN(EtcdIndex index, mirror_.Pause(fence, deadline));
  const uint64_t folder_id = index.folder_id != 0 ? index.folder_id : RandomDirectoryId();
  auto writer = std::make_unique<EtcdWriter>(&calling_, layout_, fence, index);
  absl::Status status = absl::DeadlineExceededError("the lead ended before it");
  EtcdWriter::End end = EtcdWriter::End::kUnknown;
  while (end == EtcdWriter::End::kUnknown && clock_.Now() < deadline)
    end = writer->Begin(folder_id, deadline, status);
  if (end != EtcdWriter::End::kApplied) {
    mirror_.Resume(std::move(index), absl::OkStatus());
    return Annotate(status, "the first write as a leader");
  }
  const auto leads = [&election] { return election.Leads(); };
  auto journal =
      std::make_shared<EtcdJournal>(std::move(writer), leads, &clock_, &state_.changes());
  {
    absl::MutexLock lock(&mu_);
    journal_ = journal;
    ++lead_count_;
  }
  state_.changes().Lead(std::move(journal), folder_id, leads);
  return absl::OkStatus();
}

void EtcdDirectory::Follow() {
  std::shared_ptr<EtcdJournal> journal;
  bool is_ending = false;
  {
    absl::MutexLock lock(&mu_);
    journal.swap(journal_);
    is_ending = ending_;
  }
  if (journal == nullptr) return;
  state_.changes().Follow();
  EtcdIndex index = journal->End();
  absl::Status why;
  if (state_.changes().ForgetUnsavedMembers() && !is_ending)
    why = absl::UnavailableError("changes of members were not saved when the lead ended");
  mirror_.Resume(std::move(index), why);
}

void EtcdDirectory::SeeLeader(const std::string& address) { state_.changes().SetLeader(address); }

absl::Status EtcdDirectory::CatchUp(Instant deadline) {
  if (const auto leader = state_.changes().leader(); leader && leader->is_this)
    return absl::OkStatus();
  const Instant now = clock_.Now();
  {
    absl::MutexLock lock(&mu_);
    const bool is_silent = silent_since_ && now >= *silent_since_ + kSilenceMax;
    if (is_silent && now < silent_at_ + kAskPause) return absl::OkStatus();
  }
  deadline = now + std::min<Duration>(kAskMax, (deadline - now) / 2);
  // Each transaction of a leader writes this key.
  int64_t last = 0;
  const auto read =
      calling_.ReadKeys(EtcdKeys::One(layout_.Sequence()), 0, deadline, [&](const EtcdPair& pair) {
        last = pair.mod_revision;
        return absl::OkStatus();
      });
  const bool has_all = read.ok() && mirror_.Await(last, deadline);
  absl::MutexLock lock(&mu_);
  if (has_all) {
    silent_since_.reset();
    return absl::OkStatus();
  }
  // A silence of long ago is not the same silence.
  if (!silent_since_ || now > silent_at_ + kSilenceMax) silent_since_ = now;
  silent_at_ = clock_.Now();
  if (silent_at_ >= *silent_since_ + kSilenceMax) return absl::OkStatus();
  return absl::UnavailableError("this directory follows, and etcd does not answer: try again");
}

std::string EtcdDirectory::Refusal() const {
  const Report now = report();
  const absl::Status& why = now.leads ? now.journal.last_error : now.mirror;
  return std::string(why.message());
}

EtcdDirectory::Report EtcdDirectory::report() const {
  Report report;
  if (const auto leader = state_.changes().leader()) {
    report.leads = leader->is_this;
    report.leader = leader->address;
  }
  const EtcdMirror::Stats mirror = mirror_.stats();
  report.revision = mirror.revision;
  report.mirror = mirror.last_error;
  absl::MutexLock lock(&mu_);
  report.lead_count = lead_count_;
  if (journal_ != nullptr) report.journal = journal_->stats();
  return report;
}

}  // namespace ckv
